# SPDX-License-Identifier: Apache-2.0
"""What the layers share: matrix products, norms and rotary position embedding."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig


def matmul(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x [T, in] @ weight [in, out], accumulated and returned in float32.

    Float32 operands are multiplied as such; a TPU would otherwise round them to bf16.
    """
    exact = x.dtype == jnp.float32
    precision = lax.Precision.HIGHEST if exact else lax.Precision.DEFAULT
    return jnp.dot(x, weight, precision=precision, preferred_element_type=jnp.float32)


def project(x: jax.Array, stack: jax.Array, layer: jax.Array | int) -> jax.Array:
    """x [T, in] times matrix `layer` of stack [layers, in, out], in the dtype of x."""
    return matmul(x, entry(stack, layer)).astype(x.dtype)


def entry(stack: jax.Array, layer: jax.Array | int) -> jax.Array:
    """Entry `layer` of the leading axis."""
    return _on_bits(lambda x, i: lax.dynamic_index_in_dim(x, i, keepdims=False), stack, layer)


def entries(table: jax.Array, index: jax.Array) -> jax.Array:
    """Entries of the leading axis [N, ...] at index [T]; an index out of range is clipped."""
    return _on_bits(lambda x, i: x.at[i].get(mode="clip"), table, index)


def _on_bits(select, array: jax.Array, index: jax.Array | int) -> jax.Array:
    """select(array, index), which only moves elements, done on the CPU in a way that is quick.

    XLA's CPU backend moves bf16 as float32: it converts the whole array, in every step. Integers of
    the same width it moves as they are.
    """
    if array.dtype != jnp.bfloat16:
        return select(array, index)

    def select_bits(array: jax.Array, index: jax.Array | int) -> jax.Array:
        bits = select(lax.bitcast_convert_type(array, jnp.uint16), index)
        return lax.bitcast_convert_type(bits, array.dtype)

    return lax.platform_dependent(array, index, cpu=select_bits, default=select)


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x / rms(x) * (1 + weight) over the last axis, computed in float32, in the dtype of x.

    RMSNorm (Zhang and Sennrich, arXiv 1910.07467) with its weight stored as the distance from 1.
    """
    x32 = x.astype(jnp.float32)
    normed = x32 * lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return (normed * (1.0 + weight.astype(jnp.float32))).astype(x.dtype)


class Rotary(NamedTuple):
    """Cosine and sine of each token's rotation angles, shared by all layers and heads."""

    cos: jax.Array  # [T, 1, rotary_dim / 2] float32
    sin: jax.Array  # [T, 1, rotary_dim / 2] float32


def rotary(config: ModelConfig, positions: jax.Array) -> Rotary:
    """Rotation angles of interleaved multimodal rotary embedding (M-RoPE).

    positions: int32 [3, T], a token's place in time, height and width; equal for text, which makes
    this plain rotary embedding (Su et al., arXiv 2104.09864): angle_i = position * theta^(-2i/dim).
    The axes take turns over the frequencies: i % 3 = 1 turns by height while i < 3 * section[1],
    i % 3 = 2 by width while i < 3 * section[2], all others by time.
    """
    half = config.rotary_dim // 2
    frequency = jnp.arange(half, dtype=jnp.int32)
    axis = jnp.zeros(half, jnp.int32)
    for spatial in (1, 2):
        chosen = (frequency % 3 == spatial) & (frequency < 3 * config.mrope_section[spatial])
        axis = jnp.where(chosen, spatial, axis)
    inverse = config.rope_theta ** (-2.0 * frequency.astype(jnp.float32) / config.rotary_dim)
    angles = positions[axis].T.astype(jnp.float32) * inverse  # [T, half]
    return Rotary(jnp.cos(angles)[:, None], jnp.sin(angles)[:, None])


def rotate(x: jax.Array, angles: Rotary) -> jax.Array:
    """Turn the first rotary_dim elements of each head of x [T, heads, head_dim].

    Element i pairs with element i + rotary_dim / 2; the rest passes. Computed in float32.
    """
    half = angles.cos.shape[-1]
    first, second, rest = jnp.split(x, [half, 2 * half], axis=-1)
    first, second = first.astype(jnp.float32), second.astype(jnp.float32)
    turned = (
        first * angles.cos - second * angles.sin,
        second * angles.cos + first * angles.sin,
    )
    return jnp.concatenate([*(part.astype(x.dtype) for part in turned), rest], axis=-1)
