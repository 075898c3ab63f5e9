# SPDX-License-Identifier: Apache-2.0
"""The parameters of the model: a pytree of arrays, stacked over the layers that have them.

Kernels take the whole stack and a layer index, so that no layer's weights are ever copied out.
Matrices are stored [in, out] and multiply from the right. Matrices that multiply the same input
are fused along the output axis where that saves a small matrix product per layer; `ParamSpec.parts`
says what lies in them, so that a sharded load can give each device its own share of every part.
"""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from csrc_pallas.gated_delta_net.api import GdnWeights
from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig


class ExpertParams(NamedTuple):
    """The mixture of experts after every layer: L layers, E experts, F and S intermediate sizes."""

    router: jax.Array  # [L, D, E]
    gate_up: jax.Array  # [L, E, D, 2F] gate | up
    down: jax.Array  # [L, E, F, D]
    shared_gate_up: jax.Array  # [L, D, 2S] gate | up
    shared_down: jax.Array  # [L, S, D]
    shared_gate: jax.Array  # [L, D, 1] the scalar gate of the shared expert


class AttentionParams(NamedTuple):
    """Gated softmax attention, over the A layers that are full attention."""

    query_gate: jax.Array  # [A, D, Hq * 2 * Dh] per head: query | output gate
    key_value: jax.Array  # [A, D, 2 * Hkv * Dh] keys | values
    query_norm: jax.Array  # [A, Dh]
    key_norm: jax.Array  # [A, Dh]
    output: jax.Array  # [A, Hq * Dh, D]


class GdnParams(NamedTuple):
    """Gated DeltaNet, over the G layers that are linear attention."""

    qkv: jax.Array  # [G, D, channels] queries | keys | values, before the convolution
    gate: jax.Array  # [G, D, Hv * Dv] z, the gate of the output norm
    beta_alpha: jax.Array  # [G, D, 2 * Hv] b | a
    kernel: GdnWeights
    output: jax.Array  # [G, Hv * Dv, D]


class Params(NamedTuple):
    """All parameters. A norm weight w scales by (1 + w), except GdnWeights.norm, which is w."""

    embedding: jax.Array  # [V, D]
    mixer_norm: jax.Array  # [L, D] before GDN or attention
    expert_norm: jax.Array  # [L, D] before the mixture of experts
    attention: AttentionParams
    gdn: GdnParams
    experts: ExpertParams
    final_norm: jax.Array  # [D]
    head: jax.Array | None  # [D, V]; None when the embedding serves as the head


@dataclass(frozen=True)
class ParamSpec:
    """What one parameter is, before there is any data.

    axes: a logical name per axis, for sharding rules; None for an axis that is never sharded.
    parts: sizes of the parts that lie side by side on the last axis, () when there is one.
      A sharded last axis holds, shard by shard, that shard's share of each part.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    axes: tuple[str | None, ...]
    parts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.axes) == len(self.shape), (self.shape, self.axes)
        assert not self.parts or sum(self.parts) == self.shape[-1], (self.shape, self.parts)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def param_specs(config: ModelConfig, dtype: jax.typing.DTypeLike) -> Params:
    """A tree like Params that holds a ParamSpec in place of each array.

    `dtype` is that of weights and computation; the decay parameters of GDN are always float32.
    """
    float32 = jnp.dtype(jnp.float32)
    weight_dtype = jnp.dtype(dtype)

    def spec(*axes: tuple[str | None, int], parts=(), dtype=weight_dtype) -> ParamSpec:
        names, shape = zip(*axes)
        return ParamSpec(shape, dtype, names, parts)

    layers = (None, config.num_layers)
    embed = (None, config.hidden_size)
    vocab = ("vocab", config.vocab_size)
    return Params(
        embedding=spec(vocab, embed),
        mixer_norm=spec(layers, embed),
        expert_norm=spec(layers, embed),
        attention=_attention_specs(config, spec, embed),
        gdn=_gdn_specs(config, spec, embed, float32),
        experts=_expert_specs(config, spec, layers, embed),
        final_norm=spec(embed),
        head=None if config.tie_word_embeddings else spec(embed, vocab),
    )


def _attention_specs(config: ModelConfig, spec, embed) -> AttentionParams:
    layers = (None, config.num_attention_layers)
    head = (None, config.head_dim)
    query = config.num_attention_heads * config.head_dim
    key = config.num_kv_heads * config.head_dim
    return AttentionParams(
        query_gate=spec(layers, embed, ("heads", 2 * query)),
        key_value=spec(layers, embed, ("kv_heads", 2 * key), parts=(key, key)),
        query_norm=spec(layers, head),
        key_norm=spec(layers, head),
        output=spec(layers, ("heads", query), embed),
    )


def _gdn_specs(config: ModelConfig, spec, embed, float32) -> GdnParams:
    layers = (None, config.num_gdn_layers)
    qkv_parts = (config.key_channels, config.key_channels, config.value_channels)
    channels = ("gdn_heads", config.conv_channels)
    values = ("gdn_heads", config.value_channels)
    heads = config.linear_num_value_heads
    return GdnParams(
        qkv=spec(layers, embed, channels, parts=qkv_parts),
        gate=spec(layers, embed, values),
        beta_alpha=spec(layers, embed, ("gdn_heads", 2 * heads), parts=(heads, heads)),
        kernel=GdnWeights(
            conv=spec(layers, (None, config.linear_conv_width), channels, parts=qkv_parts),
            a_log=spec(layers, ("gdn_heads", heads), dtype=float32),
            dt_bias=spec(layers, ("gdn_heads", heads), dtype=float32),
            norm=spec(layers, (None, config.linear_value_head_dim)),
        ),
        output=spec(layers, values, embed),
    )


def _expert_specs(config: ModelConfig, spec, layers, embed) -> ExpertParams:
    expert = ("experts", config.num_experts)
    width = config.moe_intermediate_size
    shared = config.shared_expert_intermediate_size
    return ExpertParams(
        router=spec(layers, embed, (None, config.num_experts)),
        gate_up=spec(layers, expert, embed, ("expert_mlp", 2 * width), parts=(width, width)),
        down=spec(layers, expert, ("expert_mlp", width), embed),
        shared_gate_up=spec(layers, embed, ("shared_mlp", 2 * shared), parts=(shared, shared)),
        shared_down=spec(layers, ("shared_mlp", shared), embed),
        shared_gate=spec(layers, embed, (None, 1)),
    )
