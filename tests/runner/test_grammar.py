# SPDX-License-Identifier: Apache-2.0
"""A grammar's bitmask reaches the rows of its requests, and bars what it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from vllm.v1.core.sched.output import GrammarOutput

from vllm_ironwood.runner import grammar


def packed(allowed: list[set[int]], width: int) -> np.ndarray:
    bits = np.zeros((len(allowed), width * 32), np.uint8)
    for row, tokens in enumerate(allowed):
        bits[row, list(tokens)] = 1
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 100])
def test_only_allowed_tokens_keep_their_logits(vocab):
    rng = np.random.default_rng(vocab)
    allowed = [set(rng.choice(vocab, rng.integers(1, vocab + 1), replace=False)) for _ in range(3)]
    logits = rng.normal(size=(3, vocab)).astype(np.float32)
    bitmask = packed(allowed, grammar.words(vocab))
    got = np.asarray(jax.jit(grammar.apply_bitmask)(logits, bitmask, jnp.asarray(True)))
    for row, tokens in enumerate(allowed):
        for token in range(vocab):
            assert got[row, token] == (logits[row, token] if token in tokens else -np.inf)


def test_a_bitmask_that_is_not_in_use_bars_nothing():
    logits = np.ones((2, 40), np.float32)
    got = grammar.apply_bitmask(logits, jnp.zeros((2, 2), jnp.int32), jnp.asarray(False))
    np.testing.assert_array_equal(got, logits)


def test_rows_stand_where_their_requests_do_and_the_others_are_free():
    output = GrammarOutput(["c", "a"], packed([{1}, {39}], 2))
    bitmask = grammar.step_bitmask(output, ["a", "b", "c"], rows=4, vocab=40)
    np.testing.assert_array_equal(bitmask[[2, 0]], packed([{1}, {39}], 2))
    np.testing.assert_array_equal(bitmask[[1, 3]], np.full((2, 2), -1))


@pytest.mark.parametrize("width", [1, 4])
def test_a_tokenizer_of_another_size_allows_no_token_that_it_has_not(width):
    output = GrammarOutput(["a"], np.full((1, width), -1, np.int32))
    bitmask = grammar.step_bitmask(output, ["a"], rows=1, vocab=96)
    expected = np.array([[-1, -1, -1]] if width == 4 else [[-1, 0, 0]])
    np.testing.assert_array_equal(bitmask, expected)
