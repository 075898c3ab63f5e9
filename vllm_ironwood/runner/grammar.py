# SPDX-License-Identifier: Apache-2.0
"""Structured output: the tokens that a grammar allows, as vLLM's bitmask."""

import jax
import jax.numpy as jnp
import numpy as np
from vllm.v1.core.sched.output import GrammarOutput

BITS = 32
_ALL = np.int32(-1)  # every bit set


def words(vocab: int) -> int:
    """int32 words of a row of the bitmask."""
    return -(-vocab // BITS)


def step_bitmask(
    grammar: GrammarOutput, request_ids: list[str], rows: int, vocab: int
) -> np.ndarray:
    """The bitmask of a step: vLLM's rows where its requests stand, all ones elsewhere.

    Args:
        request_ids: the step's requests, in the order of its rows.
        rows: rows of the bucket.

    Returns:
        int32 ``[rows, words(vocab)]``; bit ``t % 32`` of word ``t // 32`` allows token ``t``.
    """
    bitmask = np.full((rows, words(vocab)), _ALL)
    row_of = {request_id: row for row, request_id in enumerate(request_ids)}
    found = [row_of[request_id] for request_id in grammar.structured_output_request_ids]
    given = np.asarray(grammar.grammar_bitmask)[: len(found)]
    shared = min(given.shape[1], bitmask.shape[1])
    # A row of the model that no token of the tokenizer has is never allowed.
    bitmask[found] = 0
    bitmask[found, :shared] = given[:, :shared]
    return bitmask


def apply_bitmask(logits: jax.Array, bitmask: jax.Array, in_use: jax.Array) -> jax.Array:
    """-inf where the bitmask has no bit; nothing is computed when it is not in use.

    Args:
        logits: float32 ``[R, V]``.
        bitmask: int32 ``[R, words(V)]``.
        in_use: bool scalar.
    """
    vocab = logits.shape[1]

    def masked(logits: jax.Array) -> jax.Array:
        bits = bitmask[:, :, None] >> jnp.arange(BITS, dtype=jnp.int32)
        allowed = (bits & 1).reshape(bitmask.shape[0], -1)[:, :vocab] == 1
        return jnp.where(allowed, logits, -jnp.inf)

    return jax.lax.cond(in_use, masked, lambda x: x, logits)
