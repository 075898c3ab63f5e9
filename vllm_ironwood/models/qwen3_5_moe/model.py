# SPDX-License-Identifier: Apache-2.0
"""The model as pure functions: forward, compute_logits, init_caches.

Layers run in a loop over the repeats of the layer pattern (for the published models 15 or 10
repeats of GDN, GDN, GDN, attention), and within it in a loop over each run of layers of one kind.
So the program holds one body per run (two for the published models), and its size and compile time
do not grow with depth. Layers past the last whole repeat, and all layers when there is no pattern,
are runs of their own.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from csrc_pallas import ragged_batch
from vllm_ironwood.models.qwen3_5_moe.config import FULL_ATTENTION, ModelConfig
from vllm_ironwood.models.qwen3_5_moe.experts import mixture_of_experts
from vllm_ironwood.models.qwen3_5_moe.layers import Rotary, entries, entry, matmul, rms_norm, rotary
from vllm_ironwood.models.qwen3_5_moe.mixers import Caches, StepInputs, attention, gdn
from vllm_ironwood.models.qwen3_5_moe.params import Params

__all__ = ["Caches", "StepInputs", "compute_logits", "forward", "init_caches"]


def forward(
    config: ModelConfig, params: Params, caches: Caches, inputs: StepInputs
) -> tuple[jax.Array, Caches]:
    """One step over T rows: hidden states after the final norm [T, D], and the updated caches.

    Results are in the dtype of the parameters; norms, gates, softmax and routing are computed in
    float32. Rows past the batch's tokens hold finite junk.
    """
    rows = inputs.token_ids.shape[0]
    position = ragged_batch.token_position(inputs.batch, rows)
    angles = rotary(config, jnp.broadcast_to(position, (3, rows)))  # text: the axes are equal
    hidden = entries(params.embedding, inputs.token_ids)

    def layers(carry, kind, count, layer, of_kind):
        """`count` consecutive layers of one kind, the first of which is number `layer`."""

        def body(i, carry):
            return _layer(config, params, inputs, angles, carry, kind, layer + i, of_kind + i)

        return _loop(count, body, carry)

    period = layer_period(config.layer_types)
    repeats = config.num_layers // period
    pattern = config.layer_types[:period]

    def repeat(i, carry):
        for run in runs(pattern):
            layer, of_kind = i * period + run.layer, i * pattern.count(run.kind) + run.of_kind
            carry = layers(carry, run.kind, run.count, layer, of_kind)
        return carry

    carry = _loop(repeats, repeat, (hidden, caches))
    for run in runs(config.layer_types, start=repeats * period):
        carry = layers(carry, run.kind, run.count, run.layer, run.of_kind)
    hidden, caches = carry
    return rms_norm(hidden, params.final_norm, config.rms_norm_eps), caches


def layer_period(layer_types: tuple[str, ...]) -> int:
    """The smallest p such that layer i is of the same kind as layer i - p, for all i >= p."""
    count = len(layer_types)
    return next(p for p in range(1, count + 1) if layer_types[p:] == layer_types[: count - p])


class Run(NamedTuple):
    """Consecutive layers of one kind."""

    kind: str
    count: int
    layer: int  # number of the first one among all layers
    of_kind: int  # its number among the layers of its kind


def runs(layer_types: tuple[str, ...], start: int = 0) -> Iterator[Run]:
    """The layers from `start` on as runs."""
    layer = start
    for kind, members in groupby(layer_types[start:]):
        count = len(list(members))
        yield Run(kind, count, layer, layer_types[:layer].count(kind))
        layer += count


def _loop(count: int, body, carry):
    """carry = body(i, carry) for i in range(count): one copy of the body in the program."""
    return lax.fori_loop(0, count, body, carry) if count > 1 else body(0, carry)


def _layer(
    config: ModelConfig,
    params: Params,
    inputs: StepInputs,
    angles: Rotary,
    carry: tuple[jax.Array, Caches],
    kind: str,
    layer: jax.Array | int,
    of_kind: jax.Array | int,
) -> tuple[jax.Array, Caches]:
    """One layer; `layer` counts all layers, `of_kind` those of its kind."""
    hidden, caches = carry
    eps = config.rms_norm_eps
    x = rms_norm(hidden, entry(params.mixer_norm, layer), eps)
    if kind == FULL_ATTENTION:
        mixed, caches = attention(config, params.attention, x, caches, inputs, angles, of_kind)
    else:
        mixed, caches = gdn(config, params.gdn, x, caches, inputs, of_kind)
    hidden = hidden + mixed
    x = rms_norm(hidden, entry(params.expert_norm, layer), eps)
    num_tokens = ragged_batch.num_tokens(inputs.batch)
    return hidden + mixture_of_experts(config, params.experts, x, num_tokens, layer), caches


def compute_logits(config: ModelConfig, params: Params, hidden: jax.Array) -> jax.Array:
    """Logits of N hidden states [N, D] (after the final norm): float32 [N, V]."""
    if config.tie_word_embeddings:
        return matmul(hidden, params.embedding.T)
    return matmul(hidden, params.head)


def init_caches(
    config: ModelConfig,
    *,
    num_pages: int,
    page_size: int,
    num_slots: int,
    dtype: jax.typing.DTypeLike,
    state_dtype: jax.typing.DTypeLike,
) -> Caches:
    """Zeroed caches.

    page_size: tokens in a page. num_slots: GDN states that exist at once. dtype: of the attention
    pages and of the convolution's inputs; state_dtype: of the recurrent states.
    """
    slots = (config.num_gdn_layers, num_slots)
    taps = config.linear_conv_width - 1
    state = (config.linear_num_value_heads, config.linear_key_head_dim)
    page = (config.num_kv_heads, page_size, 2 * config.head_dim)
    return Caches(
        pages=jnp.zeros((config.num_attention_layers, num_pages, *page), dtype),
        conv_state=jnp.zeros((*slots, taps, config.conv_channels), dtype),
        recurrent_state=jnp.zeros((*slots, *state, config.linear_value_head_dim), state_dtype),
    )
