# SPDX-License-Identifier: Apache-2.0
"""The sparse mixture of experts after every layer, with one expert that all tokens share."""

import jax
import jax.numpy as jnp
from jax import lax

from csrc_pallas.grouped_matmul.api import fused_experts
from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig
from vllm_ironwood.models.qwen3_5_moe.layers import entry, matmul
from vllm_ironwood.models.qwen3_5_moe.params import ExpertParams


def mixture_of_experts(
    config: ModelConfig,
    params: ExpertParams,
    x: jax.Array,
    num_tokens: jax.Array,
    layer: jax.Array | int,
) -> jax.Array:
    """Routed experts plus the shared expert; x and the result are [T, D].

    num_tokens: int32 [], rows at or after it are padding and are routed nowhere.
    """
    expert_ids, expert_weights = route(config, entry(params.router, layer), x)
    routed = fused_experts(
        x, expert_ids, expert_weights, params.gate_up, params.down, num_tokens, layer
    )
    return (routed.astype(jnp.float32) + _shared_expert(params, x, layer)).astype(x.dtype)


def route(config: ModelConfig, router: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The K experts of each token and their weights: int32 [T, K] and float32 [T, K].

    The weights are the K largest of the softmax over all experts, scaled to sum to 1. That is the
    softmax over the K largest logits alone.
    """
    logits = matmul(x, router)  # [T, E] float32
    top_logits, expert_ids = lax.top_k(logits, config.num_experts_per_tok)
    return expert_ids.astype(jnp.int32), jax.nn.softmax(top_logits, axis=-1)


def _shared_expert(params: ExpertParams, x: jax.Array, layer: jax.Array | int) -> jax.Array:
    """sigmoid(x gate) * down(silu(x gate_proj) * (x up_proj)), float32 [T, D]."""
    gate, up = jnp.split(matmul(x, entry(params.shared_gate_up, layer)), 2, axis=-1)
    inner = (jax.nn.silu(gate) * up).astype(x.dtype)
    strength = jax.nn.sigmoid(matmul(x, entry(params.shared_gate, layer)))  # [T, 1]
    return strength * matmul(inner, entry(params.shared_down, layer))
