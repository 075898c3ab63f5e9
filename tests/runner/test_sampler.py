# SPDX-License-Identifier: Apache-2.0
"""Sampling against a numpy oracle, and against the distribution it must draw from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vllm_ironwood.runner.sampler import SamplingInputs, sample, top_logprobs

sample_jit = jax.jit(lambda *args: sample(*args)[0])


def inputs(
    rows, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=None, position=0
) -> SamplingInputs:
    def fill(value, dtype):
        return jnp.broadcast_to(jnp.asarray(value, dtype), (rows,))

    return SamplingInputs(
        temperature=fill(temperature, jnp.float32),
        top_k=fill(top_k, jnp.int32),
        top_p=fill(top_p, jnp.float32),
        min_p=fill(min_p, jnp.float32),
        seed=fill(np.arange(rows) if seed is None else seed, jnp.uint32),
        position=fill(position, jnp.int32),
    )


def allowed_tokens(logits, temperature, top_k, top_p):
    """The oracle: which tokens may be drawn, and with what probability (float64)."""
    x = logits.astype(np.float64) / temperature
    order = np.argsort(-x, kind="stable")
    k = len(x) if top_k <= 0 else min(top_k, len(x))
    keep = order[:k]
    p = np.exp(x[keep] - x[keep].max())
    p /= p.sum()
    before = np.cumsum(p) - p
    keep, p = keep[before < top_p], p[before < top_p]
    return dict(zip(keep.tolist(), (p / p.sum()).tolist(), strict=True))


@pytest.mark.parametrize("vocab", [1, 5, 130, 257])
@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_greedy_takes_the_most_likely_token(vocab, temperature):
    logits = np.random.default_rng(vocab).normal(size=(7, vocab)).astype(np.float32)
    out = sample_jit(logits, inputs(7, temperature=temperature, top_k=3, top_p=0.5))
    np.testing.assert_array_equal(out, logits.argmax(-1))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 100.0])
@pytest.mark.parametrize("top_k", [0, 1, 3, 40, 41])
@pytest.mark.parametrize("top_p", [1e-6, 0.5, 0.9, 1.0])
def test_draws_come_from_the_allowed_tokens_with_their_probability(temperature, top_k, top_p):
    draws, vocab = 2000, 40
    logits = np.random.default_rng(3).normal(size=vocab).astype(np.float32) * 2
    out = sample_jit(
        jnp.broadcast_to(logits, (draws, vocab)),
        inputs(draws, temperature=temperature, top_k=top_k, top_p=top_p),
    )
    expected = allowed_tokens(logits, temperature, top_k, top_p)
    counts = np.bincount(np.asarray(out), minlength=vocab)
    assert set(np.flatnonzero(counts)) <= set(expected)
    tokens = np.array(list(expected))
    p = np.array(list(expected.values()))
    chi_square = ((counts[tokens] - draws * p) ** 2 / (draws * p)).sum()
    # Mean = degrees of freedom, variance twice that: 5 standard deviations.
    freedom = len(p) - 1
    assert chi_square <= freedom + 5 * np.sqrt(2 * freedom) + 1e-6


def test_a_draw_depends_on_seed_and_position_alone():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(6, 50)), jnp.float32)
    seeds, positions = np.arange(6) + 100, np.arange(6) * 3
    together = sample_jit(logits, inputs(6, seed=seeds, position=positions))
    for i in range(6):
        alone = sample_jit(logits[i : i + 1], inputs(1, seed=seeds[i], position=positions[i]))
        assert alone[0] == together[i]


def test_positions_give_different_draws():
    logits = jnp.zeros((200, 50))
    out = sample_jit(logits, inputs(200, seed=5, position=np.arange(200)))
    assert len(set(np.asarray(out).tolist())) > 30


def test_greedy_rows_are_greedy_beside_sampled_rows():
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(40, 30)), jnp.float32)
    temperature = np.where(np.arange(40) % 2 == 0, 0.0, 5.0)
    out = np.asarray(sample_jit(logits, inputs(40, temperature=temperature)))
    np.testing.assert_array_equal(out[::2], np.asarray(logits.argmax(-1))[::2])


@pytest.mark.parametrize(("vocab", "num"), [(5, 20), (100, 20), (100, 1)])
def test_logprobs_have_the_chosen_token_first_and_then_the_likeliest(vocab, num):
    rng = np.random.default_rng(vocab)
    logits = rng.normal(size=(9, vocab)).astype(np.float32) * 4
    sampled = rng.integers(vocab, size=9).astype(np.int32)
    got = jax.jit(top_logprobs, static_argnums=2)(jax.nn.log_softmax(logits), sampled, num)
    x = logits.astype(np.float64)
    expected = x - x.max(-1, keepdims=True)
    expected -= np.log(np.exp(expected).sum(-1, keepdims=True))
    order = np.argsort(-x, axis=-1)[:, :num]
    rows = np.arange(9)
    np.testing.assert_array_equal(got.token_ids[:, 0], sampled)
    np.testing.assert_array_equal(got.token_ids[:, 1:], order)
    np.testing.assert_allclose(got.logprobs[:, 0], expected[rows, sampled], atol=1e-5)
    np.testing.assert_allclose(
        got.logprobs[:, 1:], np.take_along_axis(expected, order, -1), atol=1e-5
    )
    ranks = (expected > expected[rows, sampled][:, None]).sum(-1) + 1
    np.testing.assert_array_equal(got.ranks, ranks)


def test_what_a_token_was_drawn_from_is_told():
    logits = np.random.default_rng(2).normal(size=(2, 12)).astype(np.float32)
    _, processed = jax.jit(sample)(logits, inputs(2, temperature=[0.0, 0.5], top_k=3))
    np.testing.assert_array_equal(processed[0], logits[0])
    kept = np.asarray(processed[1]) > -np.inf
    assert set(np.flatnonzero(kept)) == set(np.argsort(-logits[1])[:3])
    np.testing.assert_allclose(processed[1][kept], logits[1][kept] / 0.5, rtol=1e-6)


@pytest.mark.parametrize(
    "fields", [{"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.3}, {}], ids=str
)
@pytest.mark.parametrize("vocab", [1, 127, 257])
def test_a_row_without_a_token_left_harms_no_other(vocab, fields):
    logits = np.random.default_rng(0).normal(size=(3, vocab)).astype(np.float32)
    logits[1] = -np.inf
    tokens, processed = jax.jit(sample)(logits, inputs(3, **fields))
    assert 0 <= tokens[1] < vocab
    assert not np.isnan(processed).any()
    for i in (0, 2):
        assert tokens[i] == sample_jit(logits[i : i + 1], inputs(1, seed=i, **fields))[0]


def test_tokens_without_a_chance_are_never_drawn():
    logits = np.full((500, 130), -np.inf, np.float32)
    logits[:, [3, 129]] = 0.0
    for fields in ({}, {"top_k": 64}, {"top_p": 0.999}, {"min_p": 1e-6}, {"temperature": 100.0}):
        drawn = np.asarray(sample_jit(logits, inputs(500, **fields)))
        assert set(drawn.tolist()) == {3, 129}


@pytest.mark.parametrize("limit", [{"top_k": 2}, {"top_p": 0.5}])
def test_zero_and_minus_zero_are_equally_likely(limit):
    logits = np.array([[-0.0, 0.0, -0.0, -5.0]], np.float32)
    _, processed = jax.jit(sample)(logits, inputs(1, **limit))
    assert (np.asarray(processed[0]) > -np.inf).tolist() == [True, True, True, False]


def test_limits_hold_over_the_whole_range_of_floats():
    logits = np.array([[3e38, 1e-30, -1e-30, -3e38, -np.inf, 1.0]], np.float32)
    for top_k in range(1, 6):
        _, processed = jax.jit(sample)(logits, inputs(1, top_k=top_k))
        kept = set(np.flatnonzero(np.asarray(processed[0]) > -np.inf))
        assert kept == set(np.argsort(-logits[0])[:top_k])
