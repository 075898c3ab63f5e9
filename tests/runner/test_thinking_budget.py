# SPDX-License-Identifier: Apache-2.0
"""Reasoning ends when its budget is used up, wherever it began and whatever its markers."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.sampling_params import SamplingParams

from vllm_ironwood.errors import ConfigurationError
from vllm_ironwood.runner import token_rules
from vllm_ironwood.runner.thinking_budget import ReasoningMarkers, reasoning_markers
from vllm_ironwood.runner.token_rules import RuleInputs, apply_rules, count_sampled

VOCAB = 12
SHORT = ReasoningMarkers(begin=(10,), end=(11,), forced_end=(11,))
PHRASE = ReasoningMarkers(begin=(10, 1), end=(11, 2), forced_end=(5, 5, 6, 11, 2))
LONGEST = ReasoningMarkers(
    begin=(10,) * 15 + (1,), end=(11,) * 15 + (2,), forced_end=(5,) * 48 + (11,) * 15 + (2,)
)


@jax.jit
def step(tables, logits, in_use, rows):
    """Greedy: one token for each of the rows."""
    zeros = jnp.zeros(len(rows))
    inputs = RuleInputs(rows, in_use, in_use & False, zeros, zeros, zeros + 1)
    sampled = jnp.argmax(apply_rules(logits, tables, inputs), axis=-1).astype(jnp.int32)
    return count_sampled(tables, inputs, sampled, in_use), sampled


def find_last(tokens: list[int], marker: tuple[int, ...]) -> int:
    """Index behind the last occurrence, -1 without one."""
    for end in range(len(tokens), len(marker) - 1, -1):
        if tuple(tokens[end - len(marker) : end]) == marker:
            return end
    return -1


def forced_token(tokens: list[int], budget: int | None, markers: ReasoningMarkers) -> int | None:
    """The definition, from all tokens so far: what has to come next, if anything has to."""
    begun, ended = find_last(tokens, markers.begin), find_last(tokens, markers.end)
    if budget is None or begun <= ended or len(tokens) - begun < budget:
        return None
    for said in range(len(markers.forced_end) - 1, 0, -1):
        if tuple(tokens[-said:]) == markers.forced_end[:said]:
            return markers.forced_end[said]
    return markers.forced_end[0]


def run(prompts, budgets, markers, wanted, resume_at=()) -> list[list[int]]:
    """Generate with a model that wants ``wanted[step][request]`` in each step.

    Args:
        resume_at: steps before which every row is written anew, as after a preemption.
    """
    rows = np.arange(len(prompts))[::-1].copy()
    batch = [SamplingParams(thinking_token_budget=budget) for budget in budgets]
    outputs: list[list[int]] = [[] for _ in prompts]
    tables = token_rules.empty_tables(len(prompts), VOCAB)
    in_use = np.array([token_rules.asks_for_rules(params) for params in batch])
    for number, wants in enumerate(wanted):
        if number == 0 or number in resume_at:
            for row, params, prompt, output in zip(rows, batch, prompts, outputs, strict=True):
                rules = token_rules.rules_of(params, prompt, output, VOCAB, markers)
                tables = token_rules.set_row(tables, row, rules)
        logits = np.eye(VOCAB, dtype=np.float32)[list(wants)]
        tables, sampled = step(tables, logits, in_use, rows)
        for output, token in zip(outputs, np.asarray(sampled), strict=True):
            output.append(int(token))
    return outputs


tokens = st.sampled_from([1, 2, 5, 6, 10, 11])


@given(data=st.data(), markers=st.sampled_from([SHORT, PHRASE]))
@settings(max_examples=40, deadline=None)
def test_every_token_is_the_forced_one_or_what_the_model_wants(data, markers):
    prompts = data.draw(st.lists(st.lists(tokens, max_size=12), min_size=3, max_size=3))
    budgets = data.draw(st.tuples(*[st.sampled_from([None, 0, 1, 3, 8])] * 3))
    wanted = data.draw(st.lists(st.tuples(tokens, tokens, tokens), min_size=1, max_size=20))
    outputs = run(prompts, budgets, markers, wanted, resume_at=(4, 9))
    for i, (prompt, budget, output) in enumerate(zip(prompts, budgets, outputs, strict=True)):
        for position, token in enumerate(output):
            forced = forced_token(prompt + output[:position], budget, markers)
            assert token == (wanted[position][i] if forced is None else forced)


@pytest.mark.parametrize("markers", [SHORT, PHRASE, LONGEST])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_model_that_would_reason_for_ever_is_ended_after_its_budget(markers, budget):
    prompt = [3, *markers.begin]
    [output] = run([prompt], [budget], markers, [(7,)] * 80)
    expected = [7] * budget + list(markers.forced_end)
    assert output[: len(expected)] == expected
    assert set(output[len(expected) :]) == {7}


def test_reasoning_that_begins_again_has_its_budget_again():
    wanted = [(token,) for token in [10, 7, 7, 7, 7, 10, 7, 7, 7, 7]]
    [output] = run([[1]], [2], SHORT, wanted)
    assert output == [10, 7, 7, 11, 7, 10, 7, 7, 11, 7]


def test_without_a_budget_or_markers_nothing_is_forced():
    wanted = [(7, 7)] * 4
    assert run([[10], [10]], [None, None], SHORT, wanted) == [[7] * 4] * 2
    assert run([[10], [10]], [0, None], None, wanted) == [[7] * 4] * 2


def test_a_grammar_in_force_goes_before_the_budget():
    tables = token_rules.empty_tables(2, VOCAB)
    params = SamplingParams(thinking_token_budget=0)
    for row in range(2):
        rules = token_rules.rules_of(params, [10], [], VOCAB, SHORT)
        tables = token_rules.set_row(tables, row, rules)
    logits = np.zeros((2, VOCAB), np.float32)
    logits[:, 4] = 1.0
    logits[1, 11] = -np.inf
    _, sampled = step(tables, logits, np.array([True, True]), np.array([0, 1]))
    assert sampled.tolist() == [11, 4]


def config(begin=(10,), end=(11,), forced=(11,), enabled=True) -> SimpleNamespace:
    """Stands for vLLM's `ReasoningConfig` with its strings already tokenized."""
    return SimpleNamespace(
        enabled=enabled,
        reasoning_end_str="the end",
        reasoning_start_token_ids=list(begin),
        natural_reasoning_end_token_ids=list(end),
        reasoning_end_token_ids=list(forced),
    )


def test_markers_are_those_of_the_configuration():
    assert reasoning_markers(None) is None
    assert reasoning_markers(config(enabled=False)) is None
    assert reasoning_markers(config(forced=[4, 11])) == ReasoningMarkers((10,), (11,), (4, 11))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"begin": [1] * 17}, "begin marker .* has 17 tokens; give one of at most 16"),
        ({"end": [1] * 17}, "end marker .* has 17 tokens; give one of at most 16"),
        ({"forced": [1] * 64 + [11]}, "forced_end marker .* 65 tokens; give one of at most 64"),
        ({"forced": [4, 5]}, "'the end' .* does not contain what ends reasoning"),
        ({"end": [4, 5], "forced": [5]}, "does not contain what ends reasoning"),
    ],
)
def test_markers_that_do_not_fit_are_refused_by_name(fields, message):
    with pytest.raises(ConfigurationError, match=message):
        reasoning_markers(config(**fields))
