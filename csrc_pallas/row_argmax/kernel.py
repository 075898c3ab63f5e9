# SPDX-License-Identifier: Apache-2.0
"""Pallas TPU kernel: a running maximum per lane, reduced across the lanes once at the end."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
# Columns a grid step reads: 1 MiB at 64 rows, so that the DMA hides the step's fixed cost.
BLOCK = 4096
# Rows whose running maximum and index stay in registers: 8 + 8 of 64.
ROWS = 64


def _body(logits_ref, index_ref, best_ref, group_ref, *, vocab: int) -> None:
    """One block of columns of one block of rows.

    best_ref, group_ref: [rows, LANES] per lane the largest value so far and the group of LANES
    columns it came from. Only the last block reaches beyond the vocabulary.
    """
    step, steps = pl.program_id(1), pl.num_programs(1)
    groups = BLOCK // LANES

    @pl.when(step == 0)
    def _():
        best_ref[...] = jnp.full_like(best_ref, -jnp.inf)
        group_ref[...] = jnp.zeros_like(group_ref)

    def update(limit: int | None) -> None:
        best, group = best_ref[...], group_ref[...]
        lane = jax.lax.broadcasted_iota(jnp.int32, best.shape, 1)
        for g in range(groups):
            value = logits_ref[:, g * LANES : (g + 1) * LANES]
            larger = value > best
            if limit is not None:
                larger &= lane < limit - g * LANES
            best = jnp.where(larger, value, best)
            group = jnp.where(larger, step * groups + g, group)
        best_ref[...], group_ref[...] = best, group

    @pl.when(step < steps - 1)
    def _():
        update(limit=None)

    @pl.when(step == steps - 1)
    def _():
        update(limit=vocab - (pl.cdiv(vocab, BLOCK) - 1) * BLOCK)
        best, group = best_ref[...], group_ref[...]
        lane = jax.lax.broadcasted_iota(jnp.int32, best.shape, 1)
        is_best = best == jnp.max(best, axis=1, keepdims=True)
        index = jnp.where(is_best, group * LANES + lane, vocab)
        first = jnp.min(index, axis=1, keepdims=True)
        index_ref[...] = jnp.broadcast_to(first, index_ref.shape)


@functools.partial(jax.jit, static_argnames="interpret")
def row_argmax(logits: jax.Array, *, interpret: bool | pltpu.InterpretParams = False) -> jax.Array:
    """See `api.row_argmax`."""
    rows, vocab = logits.shape
    block_rows = rows if rows < ROWS else ROWS
    index = pl.pallas_call(
        functools.partial(_body, vocab=vocab),
        grid=(pl.cdiv(rows, block_rows), pl.cdiv(vocab, BLOCK)),
        in_specs=[pl.BlockSpec((block_rows, BLOCK), lambda r, v: (r, v))],
        out_specs=pl.BlockSpec((block_rows, LANES), lambda r, v: (r, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, LANES), jnp.int32),
        scratch_shapes=[
            pltpu.VMEM((block_rows, LANES), jnp.float32),
            pltpu.VMEM((block_rows, LANES), jnp.int32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
        name="row_argmax",
    )(logits)
    return index[:, 0]
