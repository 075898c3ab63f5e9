# SPDX-License-Identifier: Apache-2.0
"""What callers import: `ragged_paged_attention`."""

import jax
import jax.numpy as jnp

from csrc_pallas import checks
from csrc_pallas.ragged_batch import RaggedBatch
from csrc_pallas.ragged_paged_attention import reference


def ragged_paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    pages: jax.Array,
    block_tables: jax.Array,
    batch: RaggedBatch,
    layer: jax.Array | int,
    *,
    sm_scale: float,
) -> tuple[jax.Array, jax.Array]:
    """Writes the new keys and values into their pages, then attends causally over every request.

    Token j of request r lives at offset j % page_size of page block_tables[r, j // page_size], and
    query head h reads KV head h // (Hq // Hkv). Softmax and accumulation are float32.

    Args:
        q: [T, Hq, D] queries (rotary embedding applied), Hq a multiple of Hkv.
        k, v: [T, Hkv, D] keys and values of the new tokens.
        pages: [attention_layers, num_pages, Hkv, page_size, 2 * D], K beside V on the last axis.
            Donate it: only the new tokens' rows of `layer` are written. What no request has
            written may hold anything, NaN too.
        block_tables: int32 [R, P] page of each page-sized block of a request. Entries past the
            last block in use may hold anything.
        batch: the rows and context lengths of the R requests.
        layer: int32 scalar in [0, attention_layers), may be traced.
        sm_scale: factor on q . k, usually D ** -0.5.

    Returns:
        ([T, Hq, D] in the dtype of q, zero in padding rows; the updated pages).

    Raises:
        ValueError: an argument's shape or dtype does not fit the others.
    """
    num_requests = checks.check_batch(batch)
    checks.check_rank("q", q, "[T, Hq, D]")
    checks.check_rank("k", k, "[T, Hkv, D]")
    rows, query_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    checks.check_multiple("query heads", query_heads, "KV heads", kv_heads)
    checks.check_shape("k", k, "[T, Hkv, D]", (rows, kv_heads, head_dim))
    checks.check_shape("v", v, "[T, Hkv, D]", (rows, kv_heads, head_dim))
    checks.check_rank("pages", pages, "[layers, pages, Hkv, page_size, 2 * D]")
    checks.check_shape(
        "pages",
        pages,
        "[layers, pages, Hkv, page_size, 2 * D]",
        (*pages.shape[:2], kv_heads, pages.shape[3], 2 * head_dim),
    )
    checks.check_rank("block_tables", block_tables, "[R, P]")
    checks.check_shape(
        "block_tables", block_tables, "[R, P]", (num_requests, block_tables.shape[1])
    )
    checks.check_dtype("block_tables", block_tables, jnp.int32)
    for name, array in (("q", q), ("k", k), ("v", v), ("pages", pages)):
        checks.check_floating(name, array)
    layer = jnp.asarray(layer, jnp.int32)
    checks.check_shape("layer", layer, "[]", ())
    return reference.ragged_paged_attention(
        q, k, v, pages, block_tables, batch, layer, sm_scale=sm_scale
    )
