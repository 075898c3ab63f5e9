# SPDX-License-Identifier: Apache-2.0
"""One step, one program: built for every bucket before the server says ready."""

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from vllm.sampling_params import SamplingParams

from csrc_pallas.gated_delta_net.api import GdnSlots
from csrc_pallas.ragged_batch import RaggedBatch
from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig
from vllm_ironwood.models.qwen3_5_moe.model import Caches, StepInputs, compute_logits, forward
from vllm_ironwood.models.qwen3_5_moe.params import Params
from vllm_ironwood.runner import grammar, step_layout
from vllm_ironwood.runner.buckets import Bucket
from vllm_ironwood.runner.limits import MOST_PROMPT_LOGPROBS
from vllm_ironwood.runner.prompt_logprobs import token_logprobs
from vllm_ironwood.runner.sampler import Logprobs, SamplingInputs, sample, top_logprobs
from vllm_ironwood.runner.token_rules import (
    RuleInputs,
    RuleTables,
    apply_rules,
    count_sampled,
    rules_of,
    scores_by_id,
    set_row,
)

Tree = TypeVar("Tree")  # of arrays


class StepState(NamedTuple):
    """What lives on the device from step to step; every program takes it over (donated)."""

    caches: Caches
    last_tokens: jax.Array  # [max_requests + 1] int32 by request row; the last is scratch
    rules: RuleTables  # by request row


class StepOutputs(NamedTuple):
    """What the host may read of a step (``R`` request rows)."""

    sampled: jax.Array  # [R] int32; meaningless where the step did not sample
    logprobs: Logprobs  # zeros unless some request of the step asked for them
    logprobs_by_id: jax.Array  # [R, 128] float32, likewise
    prompt_logprobs: Logprobs  # [T] rows, likewise; of each prompt token's successor


class RecompilationError(RuntimeError):
    """A step needed a program that was not compiled before ready."""


def step(
    config: ModelConfig,
    bucket: Bucket,
    pages_per_request: int,
    max_logprobs: int,
    logprobs_mode: str,
    params: Params,
    state: StepState,
    packed: jax.Array,
    bitmask: jax.Array,
) -> tuple[StepState, StepOutputs]:
    """Run the model over a ragged batch and sample one token per finished request row.

    Args:
        packed: int32 vector laid out by :mod:`vllm_ironwood.runner.step_layout`.
        bitmask: int32 ``[R, ceil(V / 32)]``: which tokens a grammar allows.
    """
    fields = step_layout.unpack(packed, bucket, pages_per_request)
    batch = RaggedBatch(
        query_start=fields.query_start,
        context_len=fields.context_len,
        num_decodes=fields.counts[0],
        num_requests=fields.counts[1],
    )
    inputs = StepInputs(
        token_ids=_with_tokens_on_device(fields, state.last_tokens),
        batch=batch,
        block_tables=fields.block_tables,
        slots=GdnSlots(
            read=fields.state_read,
            write=fields.state_write,
            has_initial_state=fields.context_len > 0,
        ),
    )
    hidden, caches = forward(config, params, state.caches, inputs)

    end = fields.query_start[1:]
    logits = compute_logits(config, params, hidden[jnp.maximum(end - 1, 0)])
    logits = grammar.apply_bitmask(logits, bitmask, fields.has_grammar[0] == 1)
    rules = RuleInputs(
        row=fields.row,
        in_use=fields.has_rules == 1,
        bar_stops=fields.bar_stops == 1,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        repetition_penalty=fields.repetition_penalty,
    )
    sampled, processed = sample(
        apply_rules(logits, state.rules, rules),
        SamplingInputs(
            temperature=fields.temperature,
            top_k=fields.top_k,
            top_p=fields.top_p,
            min_p=fields.min_p,
            seed=fields.seed,
            position=fields.context_len + end - fields.query_start[:-1],
        ),
    )
    scores = functools.partial(_scores, logprobs_mode, logits, processed)
    scratch_row = state.last_tokens.shape[0] - 1
    row = jnp.where(fields.sample == 1, fields.row, scratch_row)
    outputs = StepOutputs(
        sampled=sampled,
        logprobs=_if_wanted(
            fields.want_logprobs,
            lambda: top_logprobs(scores(), sampled, max_logprobs),
        ),
        logprobs_by_id=_if_wanted(
            fields.want_logprobs_by_id, lambda: scores_by_id(scores(), state.rules, fields.row)
        ),
        prompt_logprobs=_if_wanted(
            fields.want_prompt_logprobs,
            functools.partial(
                token_logprobs,
                hidden,
                fields.prompt_targets,
                lambda part: _prompt_scores(logprobs_mode, compute_logits(config, params, part)),
                min(max_logprobs, MOST_PROMPT_LOGPROBS),
            ),
        ),
    )
    state = StepState(
        caches=caches,
        last_tokens=state.last_tokens.at[row].set(sampled),
        rules=count_sampled(state.rules, rules, sampled, fields.sample == 1),
    )
    return state, outputs


def _scores(mode: str, logits: jax.Array, processed: jax.Array) -> jax.Array:
    """What vLLM's ``--logprobs-mode`` reports: of the model, or after the request's own fields."""
    return _prompt_scores(mode, processed if mode.startswith("processed") else logits)


def _prompt_scores(mode: str, logits: jax.Array) -> jax.Array:
    """Likewise of a prompt's tokens, which nothing processes."""
    return jax.nn.log_softmax(logits) if mode.endswith("logprobs") else logits


def _if_wanted(flag: jax.Array, compute: Callable[[], Tree]) -> Tree:
    """What ``compute`` gives where the flag is set, else zeros that cost nothing."""
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(compute))
    return lax.cond(flag[0] == 1, compute, lambda: nothing)


def _with_tokens_on_device(fields: step_layout.PackedFields, last_tokens: jax.Array) -> jax.Array:
    """Token ids ``[T]``, those the host does not know yet taken from the previous step.

    Such a token is always the first, and only, row of its request in the step.
    """
    ids = fields.token_ids
    start, end = fields.query_start[:-1], fields.query_start[1:]
    first = jnp.minimum(start, ids.shape[0] - 1)
    unknown = (start < end) & (ids[first] < 0)
    target = jnp.where(unknown, first, ids.shape[0])
    return ids.at[target].set(last_tokens[fields.row], mode="drop")


# Programs kept for the next engine of equal shapes. Not all of them for ever: on the CPU each
# takes about a thousand memory mappings, of the 65,530 that Linux allows a process, and XLA
# hangs or aborts when it gets no more.
_PROGRAMS_KEPT = 24


@functools.lru_cache(maxsize=_PROGRAMS_KEPT)
def _compiled_step(
    config: ModelConfig,
    bucket: Bucket,
    pages_per_request: int,
    max_logprobs: int,
    logprobs_mode: str,
    options: tuple[tuple[str, bool], ...],
    shapes: tuple[jax.ShapeDtypeStruct, ...],
    structure: jax.tree_util.PyTreeDef,
) -> jax.stages.Compiled:
    """The program of a bucket; ``shapes`` and ``structure`` are those of (params, state)."""
    params, state = jax.tree.unflatten(structure, shapes)
    packed = jax.ShapeDtypeStruct((step_layout.packed_size(bucket, pages_per_request),), jnp.int32)
    bitmask = jax.ShapeDtypeStruct((bucket.requests, grammar.words(config.vocab_size)), jnp.int32)
    # A function of its own: JAX keeps what it compiled as long as the function lives.
    run = jax.jit(
        functools.partial(step, config, bucket, pages_per_request, max_logprobs, logprobs_mode),
        donate_argnums=1,
    )
    return run.lower(params, state, packed, bitmask).compile(dict(options))


class Programs:
    """The compiled programs by bucket, and the only place that compiles one.

    After :meth:`seal` a missing bucket is an error when ``forbid_recompilation`` is set;
    otherwise it is compiled, counted and reported through ``on_late_compile``.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        pages_per_request: int,
        max_logprobs: int,
        logprobs_mode: str,
        compiler_options: Mapping[str, bool],
        forbid_recompilation: bool,
        on_late_compile: Callable[[Bucket, float], None],
    ) -> None:
        self._config = config
        self._compiler_options = dict(compiler_options)
        self._pages_per_request = pages_per_request
        self._max_logprobs = config.vocab_size if max_logprobs == -1 else max_logprobs
        self._logprobs_mode = logprobs_mode
        self._forbid = forbid_recompilation
        self._on_late_compile = on_late_compile
        self._compiled: dict[Bucket, Callable] = {}
        self._set_row: Callable[..., RuleTables] | None = None
        self._bitmasks: dict[int, jax.Array] = {}
        self._sealed = False
        self.num_late_compiles = 0

    def compile(
        self,
        buckets: Iterable[Bucket],
        params: Params,
        state: StepState,
        *,
        on_done: Callable[[Bucket], None],
    ) -> None:
        """Compile every bucket's program, or load it from the disk, one after the other.

        XLA shares its own threads among the parts of a program: two at once are no faster.
        """
        for bucket in buckets:
            self._compiled[bucket] = self._compile(bucket, params, state)
            on_done(bucket)
        # Ahead of time: jit would compile again once the tables come out of a step's program.
        row = np.int32(0), rules_of(SamplingParams(), [], [], self.vocab_size)
        self._set_row = jax.jit(set_row, donate_argnums=0).lower(state.rules, *row).compile()

    @property
    def vocab_size(self) -> int:
        return self._config.vocab_size

    def set_rules(self, state: StepState, row: int, rules: RuleTables) -> StepState:
        """Write one request's row of the token rules."""
        return state._replace(rules=self._set_row(state.rules, np.int32(row), rules))

    def clear_scratch_rules(self, state: StepState) -> StepState:
        """The same program for a row that nobody reads, so that no first request is slow."""
        scratch = state.last_tokens.shape[0] - 1
        return self.set_rules(state, scratch, rules_of(SamplingParams(), [], [], self.vocab_size))

    def temporary_bytes(self) -> int:
        """Bytes that the hungriest program needs beside its arguments and results."""
        return max(
            (p.memory_analysis().temp_size_in_bytes for p in self._compiled.values()), default=0
        )

    def seal(self) -> None:
        """Ready is about to be announced: from here on a compile is a fault."""
        self._sealed = True

    def run(
        self,
        bucket: Bucket,
        params: Params,
        state: StepState,
        packed: jax.Array | np.ndarray,
        bitmask: np.ndarray | None = None,
    ) -> tuple[StepState, StepOutputs]:
        """Dispatch a step.

        Args:
            bitmask: of a grammar, int32 ``[R, ceil(V / 32)]``; None: nothing is barred.

        Raises:
            RecompilationError: the bucket has no program and ``forbid_recompilation`` is set.
        """
        program = self._compiled.get(bucket)
        if program is None:
            program = self._compile_late(bucket, params, state)
        if bitmask is None:
            bitmask = self._all_ones(bucket.requests)
        return program(params, state, packed, bitmask)

    def _all_ones(self, rows: int) -> jax.Array:
        """A bitmask that stays on the device, so that steps without a grammar send none."""
        if rows not in self._bitmasks:
            shape = (rows, grammar.words(self._config.vocab_size))
            self._bitmasks[rows] = jax.device_put(np.full(shape, -1, np.int32))
        return self._bitmasks[rows]

    def _compile_late(self, bucket: Bucket, params: Params, state: StepState) -> Callable:
        if self._sealed and self._forbid:
            raise RecompilationError(
                f"a step of {bucket.tokens} tokens and {bucket.requests} requests has no program, "
                "and forbid_recompilation is set"
            )
        start = time.perf_counter()
        self._compiled[bucket] = self._compile(bucket, params, state)
        if self._sealed:
            self.num_late_compiles += 1
            self._on_late_compile(bucket, time.perf_counter() - start)
        return self._compiled[bucket]

    def _compile(self, bucket: Bucket, params: Params, state: StepState) -> jax.stages.Compiled:
        leaves, structure = jax.tree.flatten((params, state))
        shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in leaves)
        return _compiled_step(
            self._config,
            bucket,
            self._pages_per_request,
            self._max_logprobs,
            self._logprobs_mode,
            tuple(self._compiler_options.items()),
            shapes,
            structure,
        )
