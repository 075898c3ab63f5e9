# SPDX-License-Identifier: Apache-2.0
"""What callers import: `fused_experts`."""

import jax
import jax.numpy as jnp

from csrc_pallas import checks
from csrc_pallas.grouped_matmul import reference


def fused_experts(
    x: jax.Array,
    expert_ids: jax.Array,
    expert_weights: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
    num_tokens: jax.Array,
    layer: jax.Array | int,
) -> jax.Array:
    """Sends each token through its K experts and adds up the weighted results.

    An expert is down(silu(x gate) * (x up)). Matrix products accumulate in float32, and so does the
    weighted sum. Weights of experts that no token chose are not read.

    Args:
        x: [T, D] tokens. Rows at num_tokens and after are padding and may hold anything, NaN too.
        expert_ids: int32 [T, K], in [0, E) for real rows, anything in padding rows.
        expert_weights: float32 [T, K].
        gate_up: [L, E, D, 2 * F] stacked over the L layers, gate | up on the last axis.
        down: [L, E, F, D].
        num_tokens: int32 [] number of real rows.
        layer: int32 scalar in [0, L), may be traced.

    Returns:
        [T, D] in the dtype of x, zero in padding rows.

    Raises:
        ValueError: an argument's shape or dtype does not fit the others.
    """
    checks.check_rank("x", x, "[T, D]")
    checks.check_rank("expert_ids", expert_ids, "[T, K]")
    checks.check_rank("down", down, "[L, E, F, D]")
    rows, hidden = x.shape
    layers, experts, intermediate, _ = down.shape
    choices = expert_ids.shape[1]
    checks.check_shape("expert_ids", expert_ids, "[T, K]", (rows, choices))
    checks.check_shape("expert_weights", expert_weights, "[T, K]", (rows, choices))
    checks.check_shape(
        "gate_up", gate_up, "[L, E, D, 2 * F]", (layers, experts, hidden, 2 * intermediate)
    )
    checks.check_shape("down", down, "[L, E, F, D]", (layers, experts, intermediate, hidden))
    checks.check_dtype("expert_ids", expert_ids, jnp.int32)
    checks.check_dtype("expert_weights", expert_weights, jnp.float32)
    for name, array in (("x", x), ("gate_up", gate_up), ("down", down)):
        checks.check_floating(name, array)
    num_tokens = jnp.asarray(num_tokens, jnp.int32)
    layer = jnp.asarray(layer, jnp.int32)
    checks.check_shape("num_tokens", num_tokens, "[]", ())
    checks.check_shape("layer", layer, "[]", ())
    return reference.fused_experts(x, expert_ids, expert_weights, gate_up, down, num_tokens, layer)
