# SPDX-License-Identifier: Apache-2.0
"""Plain-JAX routed experts: the definition of right, and what serves on the CPU.

The T * K (token, choice) pairs are sorted by expert, and a loop with a dynamic trip count
multiplies blocks of sorted pairs with the weights of their one expert. Every product has the same
shape wherever a token's row falls, and a token's K results are added in the order of its choices,
so its output does not depend on the other tokens.
"""

import jax
import jax.numpy as jnp
from jax import lax

from csrc_pallas.large_arrays import tie_to_iteration
from csrc_pallas.work_items import cdiv, locate, work_items

# Pairs per block when an expert has few pairs on average (decode) and when it has many (prefill).
# Two cores of a Xeon at 2.1 GHz, float32, ms per layer. 16 tokens, top 2 of 8, hidden 128,
# intermediate 64: 0.10 with 8 rows, 0.13 with 16, 0.19 with 32, and 0.26 for all experts on all
# tokens with no sorting at all. 512 tokens: 1.34 with 8 rows, 1.12 with 32.
FEW_ROWS, MANY_ROWS = 8, 32


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
    pairs = rows * choices
    block_rows = FEW_ROWS if pairs <= FEW_ROWS * experts else MANY_ROWS
    real = jnp.arange(rows) < num_tokens

    # Padding rows go to an expert past the end, which has no work items.
    pair_expert = jnp.where(real[:, None], expert_ids, experts).reshape(-1)  # [T * K]
    order = jnp.argsort(pair_expert, stable=True).astype(jnp.int32)
    bounds = jnp.searchsorted(
        pair_expert[order], jnp.arange(experts + 1, dtype=jnp.int32), side="left"
    ).astype(jnp.int32)
    items = work_items(cdiv(bounds[1:] - bounds[:-1], block_rows))
    pair_token = jnp.pad(order // choices, (0, block_rows))  # [T * K + block_rows], sorted

    def body(i, results):
        expert, block = locate(items, i)
        start = bounds[expert] + block * block_rows
        token = lax.dynamic_slice_in_dim(pair_token, start, block_rows)
        stacks = tie_to_iteration(i, gate_up, down)
        w_gate_up, w_down = (
            lax.dynamic_slice(x, (layer, expert, 0, 0), (1, 1, *x.shape[2:]))[0, 0] for x in stacks
        )
        h = jnp.dot(x[token], w_gate_up, preferred_element_type=jnp.float32)
        h = jax.nn.silu(h[:, :intermediate]) * h[:, intermediate:]
        y = jnp.dot(h.astype(x.dtype), w_down, preferred_element_type=jnp.float32)
        # Rows past the expert's last pair are overwritten by the blocks after this one.
        return lax.dynamic_update_slice_in_dim(results, y, start, 0)

    results = jnp.zeros((pairs + block_rows, hidden), jnp.float32)
    results = lax.fori_loop(0, items.total, body, results)
    # Place of each pair among the sorted ones: the inverse of `order`.
    place = jnp.zeros(pairs, jnp.int32).at[order].set(jnp.arange(pairs, dtype=jnp.int32))
    chosen = results[place.reshape(rows, choices)]  # [T, K, D]
    out = jnp.sum(chosen * expert_weights[..., None], axis=1)
    return jnp.where(real[:, None], out, 0.0).astype(x.dtype)
