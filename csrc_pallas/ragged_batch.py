# SPDX-License-Identifier: Apache-2.0
"""The layout of one step's tokens: many requests of different lengths on one token axis."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class RaggedBatch(NamedTuple):
    """Which rows of the token axis belong to which request. A pytree of int32 arrays.

    Requests are ordered: first the decodes, which have exactly one new token each, then all others
    (prefills, chunks of prefills, requests with nothing to do in this step). So row i < num_decodes
    is the one new token of request i.

    R is the padded number of requests, T (known from the token arrays) the padded number of tokens.
    """

    query_start: jax.Array  # [R + 1] first row of each request; [num_requests:] is the token count
    context_len: jax.Array  # [R] tokens already in the caches before this step, 0 for padding
    num_decodes: jax.Array  # [] requests [0, num_decodes) have exactly one new token
    num_requests: jax.Array  # [] requests [num_requests, R) are padding


def num_tokens(batch: RaggedBatch) -> jax.Array:
    """Number of real rows on the token axis, int32 []."""
    return batch.query_start[-1]


def query_len(batch: RaggedBatch) -> jax.Array:
    """New tokens of each request, int32 [R], 0 for padding requests."""
    return batch.query_start[1:] - batch.query_start[:-1]


def token_request(batch: RaggedBatch, num_rows: int) -> jax.Array:
    """Request of each of `num_rows` token rows, int32 [num_rows], R for padding rows."""
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    # The last request that starts at or before the row: skips requests without new tokens, and is
    # R for rows at or past the token count, which is the last entry of query_start.
    started = batch.query_start <= rows[:, None]  # [num_rows, R + 1]
    return jnp.sum(started, axis=1, dtype=jnp.int32) - 1


def token_position(batch: RaggedBatch, num_rows: int) -> jax.Array:
    """Position in its sequence of each token row, int32 [num_rows], 0 for padding rows."""
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    request = token_request(batch, num_rows)
    safe = jnp.minimum(request, batch.context_len.shape[0] - 1)
    position = batch.context_len[safe] + rows - batch.query_start[safe]
    return jnp.where(rows < num_tokens(batch), position, 0)
