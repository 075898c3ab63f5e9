# SPDX-License-Identifier: Apache-2.0
"""Plain-JAX ragged paged attention: the definition of right, and what serves on the CPU.

Both arms are loops over tiles, with a dynamic trip count, so that the cost follows the tokens of
the step and not the padded maximum:
- decode: a tile is DECODE_TILE requests with one query each, requests sorted by length so that the
  short ones do not wait for the long ones;
- prefill: a tile is PREFILL_TILE consecutive queries of one request.

A tile is an online softmax (Milakov and Gimelshein, "Online normalizer calculation for softmax",
arXiv 1805.02867) over blocks of the pages it can see. Blocks start at position 0 of the sequence
and a block that a row cannot see changes nothing, not by a bit, in that row's sums. So a row's
result does not depend on the rest of the batch.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from csrc_pallas.large_arrays import tie_to_iteration, write_slices
from csrc_pallas.ragged_batch import (
    RaggedBatch,
    num_tokens,
    query_len,
    token_position,
    token_request,
)
from csrc_pallas.work_items import cdiv, locate, work_items

DECODE_TILE = 4  # requests
PREFILL_TILE = 32  # queries
KV_BLOCK = 128  # keys, rounded down to whole pages, at least one page

_MASKED = -1e30  # finite, so that a row which sees nothing yet gives exp(0) and not NaN


def ragged_paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    pages: jax.Array,
    block_tables: jax.Array,
    batch: RaggedBatch,
    layer: jax.Array,
    *,
    sm_scale: float,
) -> tuple[jax.Array, jax.Array]:
    """See `api.ragged_paged_attention`."""
    pages = write_kv(k, v, pages, block_tables, batch, layer)
    cache = _Cache(pages, _pad_to_block(block_tables, pages.shape[3]), layer, sm_scale)
    out = jnp.zeros((q.shape[0] + PREFILL_TILE, *q.shape[1:]), q.dtype)
    out = _decode(q, out, cache, batch)
    out = _prefill(q, out, cache, batch)
    return out[: q.shape[0]], pages


def write_kv(
    k: jax.Array,
    v: jax.Array,
    pages: jax.Array,
    block_tables: jax.Array,
    batch: RaggedBatch,
    layer: jax.Array,
) -> jax.Array:
    """Writes k and v [T, Hkv, D] of the real rows to their places in `pages`."""
    rows = k.shape[0]
    page_size = pages.shape[3]
    request = jnp.minimum(token_request(batch, rows), block_tables.shape[0] - 1)
    position = token_position(batch, rows)
    page = block_tables[request, position // page_size]
    zero = jnp.zeros_like(page)
    starts = jnp.stack([zero + layer, page, zero, position % page_size, zero], axis=1)
    kv = jnp.concatenate([k, v], axis=-1)[:, None, None, :, None, :]  # [T, 1, 1, Hkv, 1, 2 * D]
    which = jnp.arange(rows, dtype=jnp.int32)
    return write_slices(pages, kv, starts, which, num_tokens(batch))


class _Cache(NamedTuple):
    """What every tile reads and no loop changes."""

    pages: jax.Array  # [layers, pages, Hkv, page_size, 2 * D]
    block_tables: jax.Array  # [R, P], P a multiple of the pages per block
    layer: jax.Array  # []
    sm_scale: float


def _pages_per_block(page_size: int) -> int:
    return max(1, KV_BLOCK // page_size)


def _pad_to_block(block_tables: jax.Array, page_size: int) -> jax.Array:
    padding = -block_tables.shape[1] % _pages_per_block(page_size)
    return jnp.pad(block_tables, ((0, 0), (0, padding)))


def _decode(q: jax.Array, out: jax.Array, cache: _Cache, batch: RaggedBatch) -> jax.Array:
    """Fills rows [0, num_decodes) of `out` [T + padding, Hq, D]."""
    rows = min(q.shape[0], cache.block_tables.shape[0])
    tile = min(DECODE_TILE, rows)
    row = jnp.arange(rows, dtype=jnp.int32)
    position = jnp.where(row < batch.num_decodes, batch.context_len[:rows], -1)
    # Longest first: padding (position -1) sorts to the end and the tiles with it are never run.
    order = jnp.argsort(-position, stable=True).astype(jnp.int32)
    order = jnp.pad(order, (0, -rows % tile), constant_values=rows)

    def body(i, sorted_out):
        picked = lax.dynamic_slice(order, (i * tile,), (tile,))
        safe = jnp.minimum(picked, rows - 1)
        at = jnp.where(picked < rows, position[safe], -1)
        block = _attend(q[safe][:, None], at[:, None], cache.block_tables[safe], cache)
        return lax.dynamic_update_slice(sorted_out, block[:, 0], (i * tile, 0, 0))

    sorted_out = jnp.zeros((order.shape[0], *q.shape[1:]), q.dtype)
    sorted_out = lax.fori_loop(0, cdiv(batch.num_decodes, tile), body, sorted_out)
    place = jnp.argsort(order[:rows])
    return out.at[:rows].set(sorted_out[place])


def _prefill(q: jax.Array, out: jax.Array, cache: _Cache, batch: RaggedBatch) -> jax.Array:
    """Fills the rows of requests [num_decodes, num_requests) of `out` [T + padding, Hq, D]."""
    tile = PREFILL_TILE
    request = jnp.arange(cache.block_tables.shape[0], dtype=jnp.int32)
    length = jnp.where(request >= batch.num_decodes, query_len(batch), 0)
    items = work_items(cdiv(length, tile))
    q = jnp.pad(q, ((0, tile), (0, 0), (0, 0)))

    def body(i, out):
        request, part = locate(items, i)
        offset = part * tile + jnp.arange(tile, dtype=jnp.int32)  # in the request
        start = (batch.query_start[request] + part * tile, 0, 0)
        position = jnp.where(offset < length[request], batch.context_len[request] + offset, -1)
        block = _attend(
            lax.dynamic_slice(q, start, (tile, *q.shape[1:]))[None],
            position[None],
            lax.dynamic_index_in_dim(cache.block_tables, request),
            cache,
        )
        # Rows past the request's end get zeros: they are padding, or later tiles overwrite them.
        return lax.dynamic_update_slice(out, block[0], start)

    return lax.fori_loop(0, items.total, body, out)


def _attend(q: jax.Array, position: jax.Array, tables: jax.Array, cache: _Cache) -> jax.Array:
    """Attention of one tile of S sequences with Q queries each.

    Args:
        q: [S, Q, Hq, D].
        position: int32 [S, Q], the query sees the keys at [0, position]; -1 sees nothing, gives 0.
        tables: int32 [S, P] page numbers of the sequences.
        cache: the pages.

    Returns:
        [S, Q, Hq, D] in the dtype of q.
    """
    seqs, queries, query_heads, head_dim = q.shape
    kv_heads, page_size = cache.pages.shape[2:4]
    group = query_heads // kv_heads
    pages_per_block = _pages_per_block(page_size)
    block = pages_per_block * page_size
    last = jnp.max(position, axis=1)  # [S]

    # [S, Hkv, Q * group, D]: the query heads that share a KV head side by side in one matmul.
    q_rows = q.astype(jnp.float32) * cache.sm_scale
    q_rows = q_rows.reshape(seqs, queries, kv_heads, group, head_dim).transpose(0, 2, 1, 3, 4)
    q_rows = q_rows.reshape(seqs, kv_heads, queries * group, head_dim)
    row_position = jnp.repeat(position, group, axis=1)[:, None, :, None]  # [S, 1, Q * group, 1]

    def body(i, carry):
        row_max, row_sum, acc = carry
        page = lax.dynamic_slice(tables, (0, i * pages_per_block), (seqs, pages_per_block))
        (pages,) = tie_to_iteration(i, cache.pages)
        kv = pages.at[cache.layer, page].get(mode="clip")  # [S, pages, Hkv, page_size, 2 * D]
        kv = kv.astype(jnp.float32).transpose(0, 2, 1, 3, 4)  # [S, Hkv, pages, page_size, 2 * D]
        kv = kv.reshape(seqs, kv_heads, block, 2 * head_dim)
        key = i * block + jnp.arange(block, dtype=jnp.int32)
        scores = jnp.einsum("shqd,shkd->shqk", q_rows, kv[..., :head_dim])
        seen = key <= row_position
        scores = jnp.where(seen, scores, _MASKED)
        new_max = jnp.maximum(row_max, scores.max(axis=-1))
        weights = jnp.where(seen, jnp.exp(scores - new_max[..., None]), 0.0)
        # Keys past the end may hold NaN, and 0 * NaN is NaN.
        held = (key <= last[:, None])[:, None, :, None]  # [S, 1, block, 1]
        value = jnp.where(held, kv[..., head_dim:], 0.0)
        rescale = jnp.exp(row_max - new_max)
        row_sum = row_sum * rescale + weights.sum(axis=-1)
        acc = acc * rescale[..., None] + jnp.einsum("shqk,shkd->shqd", weights, value)
        return new_max, row_sum, acc

    rows = (seqs, kv_heads, queries * group)
    init = (
        jnp.full(rows, _MASKED, jnp.float32),
        jnp.zeros(rows, jnp.float32),
        jnp.zeros((*rows, head_dim), jnp.float32),
    )
    num_blocks = cdiv(jnp.max(last) + 1, block)
    _, row_sum, acc = lax.fori_loop(0, num_blocks, body, init)
    out = acc / jnp.where(row_sum > 0, row_sum, 1.0)[..., None]
    out = out.reshape(seqs, kv_heads, queries, group, head_dim).transpose(0, 2, 1, 3, 4)
    return out.reshape(q.shape).astype(q.dtype)
