# SPDX-License-Identifier: Apache-2.0
"""Plain-JAX routed experts: the definition of right, and what serves on the CPU.

The T * K (token, choice) pairs are sorted by expert, and a loop with a dynamic trip count
multiplies blocks of ROW_BLOCK sorted pairs with the weights of their one expert.
"""

import jax
import jax.numpy as jnp
from jax import lax

from csrc_pallas.work_items import cdiv, locate, work_items

ROW_BLOCK = 16  # (token, choice) pairs


def fused_experts(
    x: jax.Array,
    expert_ids: jax.Array,
    expert_weights: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
    num_tokens: jax.Array,
    layer: jax.Array,
) -> jax.Array:
    """See `api.fused_experts`."""
    rows, choices = expert_ids.shape
    experts, intermediate, hidden = down.shape[1:]
    real = jnp.arange(rows) < num_tokens

    # Padding rows go to an expert past the end, which has no work items.
    pair_expert = jnp.where(real[:, None], expert_ids, experts).reshape(-1)  # [T * K]
    order = jnp.argsort(pair_expert, stable=True).astype(jnp.int32)
    bounds = jnp.searchsorted(
        pair_expert[order], jnp.arange(experts + 1, dtype=jnp.int32), side="left"
    ).astype(jnp.int32)
    items = work_items(cdiv(bounds[1:] - bounds[:-1], ROW_BLOCK))
    pair_token = jnp.pad(order // choices, (0, ROW_BLOCK))  # [T * K + ROW_BLOCK], sorted

    def body(i, results):
        expert, block = locate(items, i)
        start = bounds[expert] + block * ROW_BLOCK
        token = lax.dynamic_slice_in_dim(pair_token, start, ROW_BLOCK)
        w_gate_up = lax.dynamic_slice(
            gate_up, (layer, expert, 0, 0), (1, 1, hidden, 2 * intermediate)
        )[0, 0]
        w_down = lax.dynamic_slice(down, (layer, expert, 0, 0), (1, 1, intermediate, hidden))[0, 0]
        h = jnp.dot(x[token], w_gate_up, preferred_element_type=jnp.float32)
        h = jax.nn.silu(h[:, :intermediate]) * h[:, intermediate:]
        y = jnp.dot(h.astype(x.dtype), w_down, preferred_element_type=jnp.float32)
        # Rows past the expert's last pair are overwritten by the blocks after this one.
        return lax.dynamic_update_slice_in_dim(results, y, start, 0)

    results = jnp.zeros((rows * choices + ROW_BLOCK, hidden), jnp.float32)
    results = lax.fori_loop(0, items.total, body, results)
    place = jnp.argsort(order).reshape(rows, choices)  # of each pair among the sorted ones
    chosen = results[place]  # [T, K, D]
    out = jnp.einsum("tkd,tk->td", chosen, expert_weights)
    return jnp.where(real[:, None], out, 0.0).astype(x.dtype)
