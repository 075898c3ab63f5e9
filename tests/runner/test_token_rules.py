# SPDX-License-Identifier: Apache-2.0
"""Each field that rules over tokens has its effect, alone and in any mix, as in numpy."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.sampling_params import SamplingParams

from tests.runner.numpy_sampler import probabilities, ruled_logits
from vllm_ironwood.runner import token_rules
from vllm_ironwood.runner.sampler import SamplingInputs, sample
from vllm_ironwood.runner.token_rules import RuleInputs, apply_rules, count_sampled

VOCAB = 37
ROWS = 5  # request rows of the tables; their order in a step differs
PROMPT, OUTPUT = [3, 5, 5, 9, 30], [5, 7, 7, 36]

apply_jit = jax.jit(apply_rules)
count_jit = jax.jit(count_sampled)
set_row_jit = jax.jit(token_rules.set_row)
sample_jit = jax.jit(lambda *args: sample(*args)[0])


def params_of(*, stops=(), bad_words=None, temperature=1.0, **fields) -> SamplingParams:
    params = SamplingParams(**fields)
    params.temperature = temperature  # vLLM's front end raises small ones and refuses large ones
    params._all_stop_token_ids = set(stops)
    params._bad_words_token_ids = bad_words
    return params


def step_inputs(batch, rows, outputs) -> RuleInputs:
    return RuleInputs(
        row=jnp.asarray(rows, jnp.int32),
        in_use=jnp.asarray([token_rules.asks_for_rules(p) for p in batch]),
        bar_stops=jnp.asarray([len(o) < p.min_tokens for p, o in zip(batch, outputs)]),
        presence_penalty=jnp.asarray([p.presence_penalty for p in batch], jnp.float32),
        frequency_penalty=jnp.asarray([p.frequency_penalty for p in batch], jnp.float32),
        repetition_penalty=jnp.asarray([p.repetition_penalty for p in batch], jnp.float32),
    )


def tables_of(batch, rows, prompts, outputs):
    tables = token_rules.empty_tables(ROWS, VOCAB)
    for params, row, prompt, output in zip(batch, rows, prompts, outputs, strict=True):
        if token_rules.asks_for_rules(params):
            rules = token_rules.rules_of(params, prompt, output, VOCAB)
            tables = set_row_jit(tables, row, rules)
    return tables


CASES = {
    "nothing": {},
    "presence": {"presence_penalty": 1.5},
    "negative presence": {"presence_penalty": -2.0},
    "frequency": {"frequency_penalty": 0.7},
    "repetition": {"repetition_penalty": 1.8},
    "repetition below 1": {"repetition_penalty": 0.5},
    "bias": {"logit_bias": {0: 4.0, 36: -100.0, 7: 1.5}},
    "allowed": {"allowed_token_ids": [2, 36]},
    "allowed and bias": {"allowed_token_ids": [2, 36], "logit_bias": {2: -3.0, 1: 50.0}},
    "bad word of one token": {"bad_words": [[12]]},
    "bad word that continues the output": {"bad_words": [[7, 36, 11], [5, 36, 12]]},
    "bad word longer than the output": {"bad_words": [[1, 2, 3, 4, 5, 6, 7]]},
    "the longest bad word": {"bad_words": [[9] * 16 + [1]]},
    "min_tokens not reached": {"min_tokens": 5, "stops": [1, 2]},
    "min_tokens reached": {"min_tokens": 4, "stops": [1, 2]},
    "only stops allowed": {"min_tokens": 9, "stops": [1, 2], "allowed_token_ids": [2]},
}


@pytest.mark.parametrize("name", CASES)
def test_a_field_has_its_effect_and_its_neighbours_have_none(name):
    logits = np.random.default_rng(1).normal(size=(3, VOCAB)).astype(np.float32) * 3
    plain = params_of()
    batch = [plain, params_of(**CASES[name]), plain]
    rows, prompts, outputs = [4, 2, 0], [[1]] * 3, [[2], OUTPUT, []]
    prompts[1] = PROMPT
    tables = tables_of(batch, rows, prompts, outputs)
    got = np.asarray(apply_jit(logits, tables, step_inputs(batch, rows, outputs)))
    np.testing.assert_array_equal(got[[0, 2]], logits[[0, 2]])
    expected = ruled_logits(logits[1], batch[1], PROMPT, OUTPUT)
    np.testing.assert_allclose(got[1], expected, rtol=1e-5, atol=1e-5)
    if name not in ("nothing", "min_tokens reached", "bad word longer than the output"):
        changed = name != "the longest bad word"
        assert (got[1] != logits[1]).any() == changed


tokens = st.integers(0, VOCAB - 1)
requests = st.fixed_dictionaries(
    {
        "presence_penalty": st.sampled_from([0.0, -1.0, 0.6, 2.0]),
        "frequency_penalty": st.sampled_from([0.0, -0.5, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 0.7, 1.3]),
        "logit_bias": st.none() | st.dictionaries(tokens, st.sampled_from([-100.0, -2.0, 3.0])),
        "allowed_token_ids": st.none() | st.lists(tokens, min_size=1, unique=True),
        "bad_words": st.none() | st.lists(st.lists(tokens, min_size=1, max_size=4), max_size=3),
        "min_tokens": st.integers(0, 8),
        "stops": st.lists(tokens, max_size=3),
        "temperature": st.sampled_from([0.0, 1e-6, 0.5, 1.0, 100.0]),
        "top_k": st.sampled_from([-1, 0, 1, 5, VOCAB, VOCAB + 1]),
        "top_p": st.sampled_from([1e-6, 0.4, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.05, 0.5, 1.0]),
        "seed": st.integers(0, 2**32 - 1),
    }
)


@given(data=st.data())
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],  # drawing shares the cores with other tests
)
def test_any_mix_of_fields_in_a_batch_draws_only_what_numpy_allows(data):
    batch = [
        params_of(**fields) for fields in data.draw(st.lists(requests, min_size=3, max_size=3))
    ]
    rows = data.draw(st.permutations(range(ROWS)))[:3]
    histories = st.lists(tokens, max_size=20)
    prompts = [data.draw(histories) for _ in batch]
    outputs = [data.draw(histories) for _ in batch]
    logits = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=(3, VOCAB)) * 2
    logits = np.round(logits, 1).astype(np.float32)  # rounded: there are ties

    inputs = step_inputs(batch, rows, outputs)
    ruled = apply_jit(logits, tables_of(batch, rows, prompts, outputs), inputs)
    drawn = sample_jit(
        ruled,
        SamplingInputs(
            temperature=jnp.asarray([p.temperature for p in batch], jnp.float32),
            top_k=jnp.asarray([max(p.top_k, 0) for p in batch], jnp.int32),
            top_p=jnp.asarray([p.top_p for p in batch], jnp.float32),
            min_p=jnp.asarray([p.min_p for p in batch], jnp.float32),
            seed=jnp.asarray([p.seed for p in batch], jnp.uint32),
            position=jnp.asarray([len(o) for o in outputs], jnp.int32),
        ),
    )
    for i, params in enumerate(batch):
        expected = ruled_logits(logits[i], params, prompts[i], outputs[i])
        np.testing.assert_allclose(ruled[i], expected, rtol=1e-4, atol=1e-4)
        if params.temperature < 1e-5:
            assert expected[int(drawn[i])] >= expected.max() - 1e-4
        else:
            # Float32 may keep a token on the edge of top-p that float64 does not.
            loose = copy.copy(params)
            loose.top_p = min(1.0, params.top_p + 1e-4)
            loose.min_p = params.min_p * (1 - 1e-4)
            assert probabilities(np.asarray(ruled[i], np.float64), loose)[int(drawn[i])] > 0


def test_what_a_step_samples_counts_in_the_next():
    """Twelve steps in which only some rows sample: as if the host had known all tokens."""
    rng = np.random.default_rng(5)
    fields = {"frequency_penalty": 1.0, "repetition_penalty": 1.2, "bad_words": [[4, 4, 6]]}
    batch, rows = [params_of(**fields), params_of(), params_of(presence_penalty=1.0)], [1, 0, 3]
    outputs: list[list[int]] = [[4], [], []]
    prompts = [[1, 2], [3], [4]]
    tables = tables_of(batch, rows, prompts, outputs)
    for _ in range(12):
        logits = rng.normal(size=(3, VOCAB)).astype(np.float32)
        inputs = step_inputs(batch, rows, outputs)
        got = apply_jit(logits, tables, inputs)
        for i, params in enumerate(batch):
            expected = ruled_logits(logits[i], params, prompts[i], outputs[i])
            np.testing.assert_allclose(got[i], expected, rtol=1e-5, atol=1e-5)
        sampled = rng.choice([4, 4, 6, 9], 3)
        was_sampled = rng.random(3) < 0.7
        tables = count_jit(
            tables, inputs, jnp.asarray(sampled, jnp.int32), jnp.asarray(was_sampled)
        )
        for output, token, done in zip(outputs, sampled, was_sampled, strict=True):
            if done:
                output.append(int(token))


def test_a_row_that_is_given_to_another_request_forgets_the_first():
    first, second = params_of(presence_penalty=2.0), params_of(frequency_penalty=0.1)
    tables = tables_of([first], [2], [PROMPT], [OUTPUT])
    tables = set_row_jit(tables, 2, token_rules.rules_of(second, [8], [], VOCAB))
    logits = np.random.default_rng(0).normal(size=(1, VOCAB)).astype(np.float32)
    got = apply_jit(logits, tables, step_inputs([second], [2], [[]]))
    np.testing.assert_array_equal(got, logits)


def test_chi_square_of_min_p_at_fixed_seeds():
    """Two thousand draws of a batch follow the probabilities that are left."""
    draws, vocab = 2000, 40
    logits = np.random.default_rng(3).normal(size=vocab).astype(np.float32) * 2
    params = SamplingParams(temperature=0.9, min_p=0.1)

    def all_rows(value, dtype):
        return jnp.full(draws, value, dtype)

    drawn = sample_jit(
        jnp.broadcast_to(logits, (draws, vocab)),
        SamplingInputs(
            temperature=all_rows(0.9, jnp.float32),
            top_k=all_rows(0, jnp.int32),
            top_p=all_rows(1.0, jnp.float32),
            min_p=all_rows(0.1, jnp.float32),
            seed=jnp.arange(draws, dtype=jnp.uint32),
            position=all_rows(7, jnp.int32),
        ),
    )
    expected = probabilities(logits.astype(np.float64), params) * draws
    counts = np.bincount(np.asarray(drawn), minlength=vocab)
    assert counts[expected == 0].sum() == 0
    likely = expected > 0
    statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    assert statistic < likely.sum() + 4 * np.sqrt(2 * likely.sum())
