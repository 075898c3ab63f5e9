# SPDX-License-Identifier: Apache-2.0
"""What callers import: `gated_delta_net` and its argument types."""

import jax
import jax.numpy as jnp

from csrc_pallas import checks
from csrc_pallas.gated_delta_net import reference
from csrc_pallas.gated_delta_net.types import GdnSlots, GdnWeights
from csrc_pallas.ragged_batch import RaggedBatch

__all__ = ["GdnSlots", "GdnWeights", "gated_delta_net"]


def gated_delta_net(
    qkv: jax.Array,
    z: jax.Array,
    a: jax.Array,
    b: jax.Array,
    weights: GdnWeights,
    conv_state: jax.Array,
    recurrent_state: jax.Array,
    batch: RaggedBatch,
    slots: GdnSlots,
    layer: jax.Array | int,
    *,
    num_key_heads: int,
    rms_eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Short convolution, gates, gated delta rule and gated norm of one GDN layer.

    The formulas are in `reference.py`. Value head h uses key head h // (Hv // Hk). Everything is
    computed in float32; the states are stored in their own dtypes.

    Args:
        qkv: [T, channels] projected tokens before the convolution, q | k | v on the last axis,
            channels = 2 * Hk * Dk + Hv * Dv.
        z: [T, Hv * Dv] output gate.
        a, b: [T, Hv] inputs of the decay and of the write strength.
        weights: stacked over the G layers.
        conv_state: [G, slots, W - 1, channels] the last W - 1 rows of qkv. Donate it.
        recurrent_state: [G, slots, Hv, Dk, Dv]. Donate it.
        batch: the rows and context lengths of the R requests.
        slots: the state slots of the R requests. Only the write slots of requests with new tokens
            are written, only the read slots of requests with an initial state are read.
        layer: int32 scalar in [0, G), may be traced.
        num_key_heads: Hk.
        rms_eps: epsilon of the gated norm.

    Returns:
        ([T, Hv * Dv] in the dtype of qkv, zero in padding rows; conv_state; recurrent_state).

    Raises:
        ValueError: an argument's shape or dtype does not fit the others.
    """
    num_requests = checks.check_batch(batch)
    checks.check_rank("recurrent_state", recurrent_state, "[G, slots, Hv, Dk, Dv]")
    checks.check_rank("weights.conv", weights.conv, "[G, W, channels]")
    checks.check_rank("qkv", qkv, "[T, channels]")
    layers, num_slots, value_heads, key_dim, value_dim = recurrent_state.shape
    rows, width = qkv.shape[0], weights.conv.shape[1]
    channels = 2 * num_key_heads * key_dim + value_heads * value_dim
    checks.check_multiple("value heads", value_heads, "key heads", num_key_heads)
    if width < 2:
        raise ValueError(f"the convolution has width {width}, but must have at least 2 taps")
    for name, array, axes, shape in (
        ("qkv", qkv, "[T, 2 * Hk * Dk + Hv * Dv]", (rows, channels)),
        ("z", z, "[T, Hv * Dv]", (rows, value_heads * value_dim)),
        ("a", a, "[T, Hv]", (rows, value_heads)),
        ("b", b, "[T, Hv]", (rows, value_heads)),
        ("weights.conv", weights.conv, "[G, W, channels]", (layers, width, channels)),
        ("weights.a_log", weights.a_log, "[G, Hv]", (layers, value_heads)),
        ("weights.dt_bias", weights.dt_bias, "[G, Hv]", (layers, value_heads)),
        ("weights.norm", weights.norm, "[G, Dv]", (layers, value_dim)),
        (
            "conv_state",
            conv_state,
            "[G, slots, W - 1, channels]",
            (layers, num_slots, width - 1, channels),
        ),
    ):
        checks.check_shape(name, array, axes, shape)
        checks.check_floating(name, array)
    checks.check_floating("recurrent_state", recurrent_state)
    for field, dtype in (("read", jnp.int32), ("write", jnp.int32), ("has_initial_state", bool)):
        checks.check_shape(f"slots.{field}", getattr(slots, field), "[R]", (num_requests,))
        checks.check_dtype(f"slots.{field}", getattr(slots, field), dtype)
    layer = jnp.asarray(layer, jnp.int32)
    checks.check_shape("layer", layer, "[]", ())
    return reference.gated_delta_net(
        qkv,
        z,
        a,
        b,
        weights,
        conv_state,
        recurrent_state,
        batch,
        slots,
        layer,
        num_key_heads=num_key_heads,
        rms_eps=rms_eps,
    )
