# SPDX-License-Identifier: Apache-2.0
"""What the memory of one device goes to, and how many requests that serves."""

import io
from dataclasses import dataclass
from math import prod

import jax
import jax.numpy as jnp
from rich import box
from rich.console import Console
from rich.table import Table

from vllm_ironwood.cache.plan import CachePlan, plan_caches
from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig
from vllm_ironwood.models.qwen3_5_moe.params import ParamSpec, param_specs

# Axes of the parameters that the devices of one replica of the attention divide among them,
# and those that all devices of the deployment divide.
_HEAD_AXES = frozenset({"heads", "kv_heads", "gdn_heads", "shared_mlp", "vocab"})
_EXPERT_AXES = frozenset({"experts"})


@dataclass(frozen=True)
class Layout:
    """How the arrays of a model lie on the devices of a deployment.

    Attributes:
        head_shards: devices that share the heads of one request.
        expert_shards: devices that share the experts; a multiple of ``head_shards``.
    """

    head_shards: int = 1
    expert_shards: int = 1

    def check(self, model: ModelConfig) -> None:
        """Raises:
        ValueError: the heads or experts of the model do not divide evenly; names them.
        """
        for what, count, shards in (
            ("key-value heads", model.num_kv_heads, self.head_shards),
            ("query heads", model.num_attention_heads, self.head_shards),
            ("GDN key heads", model.linear_num_key_heads, self.head_shards),
            ("experts", model.num_experts, self.expert_shards),
        ):
            if count % shards:
                raise ValueError(f"{count} {what} cannot be divided among {shards} devices")


ONE_DEVICE = Layout()


def state_shapes(
    model: ModelConfig, layout: Layout = ONE_DEVICE
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Conv and recurrent state of one layer and slot, on one device."""
    shards = layout.head_shards
    return (
        (model.linear_conv_width - 1, model.conv_channels // shards),
        (
            model.linear_num_value_heads // shards,
            model.linear_key_head_dim,
            model.linear_value_head_dim,
        ),
    )


def bytes_per_slot(
    model: ModelConfig,
    dtype: jax.typing.DTypeLike,
    state_dtype: jax.typing.DTypeLike,
    layout: Layout = ONE_DEVICE,
) -> int:
    """One request's GDN state over all layers, on one device."""
    conv, state = (prod(shape) for shape in state_shapes(model, layout))
    per_layer = conv * jnp.dtype(dtype).itemsize + state * jnp.dtype(state_dtype).itemsize
    return model.num_gdn_layers * per_layer


def bytes_per_token(
    model: ModelConfig, page_dtype: jax.typing.DTypeLike, layout: Layout = ONE_DEVICE
) -> int:
    """Keys and values of one token over all attention layers, on one device."""
    heads = model.num_kv_heads // layout.head_shards
    return 2 * model.num_attention_layers * heads * model.head_dim * jnp.dtype(page_dtype).itemsize


def weight_bytes(
    model: ModelConfig,
    dtype: jax.typing.DTypeLike,
    layout: Layout = ONE_DEVICE,
    expert_dtype: jax.typing.DTypeLike | None = None,
) -> int:
    """All parameters on one device.

    Args:
        expert_dtype: that of the routed experts where it is not ``dtype`` (FP8 checkpoints).
    """

    def of(spec: ParamSpec) -> int:
        shards, routed = 1, False
        for axis in spec.axes:
            shards *= layout.head_shards if axis in _HEAD_AXES else 1
            if axis in _EXPERT_AXES:
                shards, routed = shards * layout.expert_shards, True
        size = spec.nbytes
        if routed and expert_dtype is not None:
            size = prod(spec.shape) * jnp.dtype(expert_dtype).itemsize
        return -(-size // shards)

    specs = param_specs(model, dtype)
    return sum(of(spec) for spec in jax.tree.leaves(specs, is_leaf=_is_spec))


def _is_spec(node: object) -> bool:
    return isinstance(node, ParamSpec)


def step_temporary_bytes(
    model: ModelConfig,
    dtype: jax.typing.DTypeLike,
    *,
    max_tokens: int,
    max_requests: int,
    layout: Layout = ONE_DEVICE,
) -> int:
    """An upper estimate of what a step holds beside weights and caches, on one device.

    For plans without a device; a running engine reports what its compiled programs take.
    Counted are the widest moment of a layer (the residual, its norm, and the mixer's
    projections with their outputs, or the rows sent to the experts with both intermediate
    results) and the logits in float32 with what the request's fields make of them and the noise.
    """
    size = jnp.dtype(dtype).itemsize
    hidden, shards = model.hidden_size, layout.head_shards
    mixer = max(
        2 * (model.conv_channels + 2 * model.value_channels) // shards,
        (3 * model.num_attention_heads + 2 * model.num_kv_heads) * model.head_dim // shards,
    )
    routed_rows = -(-model.num_experts_per_tok * layout.head_shards // layout.expert_shards)
    experts = max(1, routed_rows) * (2 * hidden + 3 * model.moe_intermediate_size)
    step = max_tokens * (3 * hidden + max(mixer, experts)) * size
    logits = 3 * max_requests * -(-model.vocab_size // shards) * 4
    return step + logits


def sampling_table_bytes(vocab_size: int, max_requests: int) -> int:
    """What the device remembers of each request for penalties and barred tokens.

    A float32 bias, an int32 count and a byte of flags per token of the vocabulary, for every
    request and a scratch row.
    """
    return (max_requests + 1) * vocab_size * (4 + 4 + 1)


@dataclass(frozen=True)
class MemoryPlan:
    """Where the bytes of one device go.

    Attributes:
        limit: bytes the plan may use; None where nothing but the caches is limited (the CPU).
        weights: bytes of the parameters.
        step_temporaries: bytes a step needs while it runs.
        sampling_tables: bytes of :func:`sampling_table_bytes`.
        caches: the two pools.
        block_size: tokens of an attention page.
        max_model_len: tokens of the longest request.
        max_requests: requests that may run at once, whatever the memory.
    """

    limit: int | None
    weights: int
    step_temporaries: int
    sampling_tables: int
    caches: CachePlan
    block_size: int
    max_model_len: int
    max_requests: int

    @property
    def used(self) -> int:
        caches = self.caches
        page_bytes = caches.num_pages * caches.bytes_per_page
        others = self.weights + self.step_temporaries + self.sampling_tables
        return others + caches.state_bytes + page_bytes

    @property
    def bytes_per_token(self) -> int:
        return self.caches.bytes_per_page // self.block_size

    @property
    def bytes_per_request(self) -> int:
        """Pages and state slots of one request of the longest length."""
        pages = -(-self.max_model_len // self.block_size)
        caches = self.caches
        return pages * caches.bytes_per_page + caches.slots_per_request * caches.bytes_per_slot

    def concurrency(self, tokens: int | None = None) -> tuple[int, str]:
        """How many requests of ``tokens`` (the longest length) run at once, and the limit.

        The limit is ``"attention pages"``, ``"GDN state slots"`` or ``"--max-num-seqs"``.
        """
        pages_each = -(-(tokens or self.max_model_len) // self.block_size)
        candidates = (
            (self.max_requests, "--max-num-seqs"),
            # Page 0 is the null page.
            ((self.caches.num_pages - 1) // pages_each, "attention pages"),
            (self.caches.max_concurrency, "GDN state slots"),
        )
        return min(candidates, key=lambda candidate: candidate[0])

    def table(self) -> str:
        """The plan for the log, a line per use."""
        caches = self.caches
        table = Table(title="Memory of a device", title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("use")
        table.add_column("count", justify="right")
        table.add_column("each", justify="right")
        table.add_column("MiB", justify="right")

        def row(use: str, size: int, count: str = "", each: str = "") -> None:
            table.add_row(use, count, each, f"{size / 2**20:,.1f}")

        row("weights", self.weights)
        row("step temporaries", self.step_temporaries)
        row("sampling tables", self.sampling_tables)
        row(
            "attention pages",
            caches.num_pages * caches.bytes_per_page,
            f"{caches.num_pages:,} x {self.block_size} tokens",
            f"{self.bytes_per_token:,} B/token",
        )
        live = min(caches.num_slots, self.max_requests * caches.slots_per_request)
        each = f"{caches.bytes_per_slot / 2**20:,.2f} MiB"
        row("GDN states of requests", live * caches.bytes_per_slot, f"{live:,} slots", each)
        kept = caches.num_slots - live
        row("GDN snapshots, at least", kept * caches.bytes_per_slot, f"{kept:,} slots", each)
        if self.limit is not None:
            row("left", self.limit - self.used)
        count, limit = self.concurrency()
        summary = (
            f"A request of {self.max_model_len:,} tokens takes "
            f"{self.bytes_per_request / 2**20:,.1f} MiB and up to {caches.slots_per_request} slots;"
            f" {count:,} run at once (limit: {limit})"
        )
        out = io.StringIO()
        Console(file=out, width=100, no_color=True).print(table)
        return out.getvalue() + summary


def plan_deployment(
    model: ModelConfig,
    layout: Layout,
    *,
    limit: int,
    dtype: jax.typing.DTypeLike,
    state_dtype: jax.typing.DTypeLike,
    page_dtype: jax.typing.DTypeLike,
    expert_dtype: jax.typing.DTypeLike,
    block_size: int,
    max_model_len: int,
    max_requests: int,
    max_tokens: int,
    prefix_caching: bool = True,
    async_scheduling: bool = True,
) -> MemoryPlan:
    """Plan one device of a deployment that does not run here.

    Args:
        limit: bytes of device memory to use.
        max_requests: requests at once in one replica of the attention.
        max_tokens: tokens of the largest step of one replica.

    Raises:
        CacheMemoryError: weights and temporaries leave too little for one request.
        ValueError: heads or experts do not divide among the devices.
    """
    layout.check(model)
    weights = weight_bytes(model, dtype, layout, expert_dtype)
    temporaries = step_temporary_bytes(
        model, dtype, max_tokens=max_tokens, max_requests=max_requests, layout=layout
    )
    tables = sampling_table_bytes(model.vocab_size, max_requests)
    caches = plan_caches(
        budget=limit - weights - temporaries - tables,
        bytes_per_slot=bytes_per_slot(model, dtype, state_dtype, layout),
        bytes_per_page=block_size * bytes_per_token(model, page_dtype, layout),
        pages_per_request=-(-max_model_len // block_size),
        max_requests=max_requests,
        prefix_caching=prefix_caching,
        async_scheduling=async_scheduling,
    )
    return MemoryPlan(
        limit=limit,
        weights=weights,
        step_temporaries=temporaries,
        sampling_tables=tables,
        caches=caches,
        block_size=block_size,
        max_model_len=max_model_len,
        max_requests=max_requests,
    )
