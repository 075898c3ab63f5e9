# SPDX-License-Identifier: Apache-2.0
"""Rows are never lost, shared or stale, whatever happens to requests."""

import numpy as np
import pytest
from vllm.sampling_params import SamplingParams

from vllm_ironwood.runner.requests import RequestTable


def table(max_requests: int = 3, seed: int = 0) -> RequestTable:
    return RequestTable(
        max_requests=max_requests,
        max_model_len=20,
        block_size=4,
        state_block_size=8,
        engine_seed=seed,
    )


def test_a_new_request_does_not_see_its_row_s_previous_owner():
    t = table(max_requests=1)
    t.add(
        "a",
        range(15),
        SamplingParams(temperature=0.5, top_k=7, seed=1, logprobs=3),
        8,
        [5, 6, 7, 8],
        [2, 3],
    )
    t.remove("a")
    t.add("b", [1, 2], SamplingParams(temperature=0), 0, [9], [4])
    row = t.rows(["b"])[0]
    assert t.known_len[row] == 2
    assert t.computed[row] == 0
    assert t.pages_used[row] == 1
    assert t.states_used[row] == 1
    assert t.sampling["temperature"][row] == 0
    assert t.sampling["num_logprobs"][row] == -1


def test_more_requests_may_be_preempted_than_there_are_rows():
    t = table(max_requests=2)
    for i in range(5):
        t.add(f"r{i}", [i] * 3, SamplingParams(seed=i, temperature=1.0), 0, [i], [i + 1])
        t.preempt(f"r{i}")
    t.resume("r3", [3, 3, 3, 9], 0, [7], [2])
    row = t.rows(["r3"])[0]
    assert t.sampling["seed"][row] == 3
    assert t.tokens[row, :4].tolist() == [3, 3, 3, 9]
    assert t.known_len[row] == 4


def test_an_unseeded_request_keeps_its_random_stream_when_it_resumes():
    t = table()
    t.add("a", [1], SamplingParams(temperature=1.0), 0, [1], [1])
    before = t.sampling["seed"][t.rows(["a"])[0]]
    t.preempt("a")
    t.add("b", [1], SamplingParams(temperature=1.0), 0, [1], [1])
    t.resume("a", [1, 2], 0, [2], [2])
    assert t.sampling["seed"][t.rows(["a"])[0]] == before
    assert t.sampling["seed"][t.rows(["b"])[0]] != before


def test_blocks_append_and_a_resumption_replaces_them():
    t = table()
    t.add("a", [1] * 5, SamplingParams(), 0, [3, 4], [1])
    t.append_blocks("a", [5], [])
    row = t.rows(["a"])[0]
    assert t.pages[row, : t.pages_used[row]].tolist() == [3, 4, 5]
    t.preempt("a")
    t.resume("a", [1] * 9, 4, [8], [6, 7])
    row = t.rows(["a"])[0]
    assert t.pages[row, : t.pages_used[row]].tolist() == [8]
    assert t.states[row, : t.states_used[row]].tolist() == [6, 7]
    assert t.computed[row] == 4


def test_finishing_frees_a_row_once_and_unknown_requests_are_ignored():
    t = table(max_requests=2)
    t.add("a", [1], SamplingParams(), 0, [1], [1])
    t.add("b", [1], SamplingParams(), 0, [2], [2])
    t.preempt("b")
    for _ in range(2):
        t.remove("a"), t.remove("b"), t.remove("never seen")
    t.add("c", [1], SamplingParams(), 0, [1], [1])
    t.add("d", [1], SamplingParams(), 0, [2], [2])
    assert len(t) == 2
    assert len(set(t.rows(["c", "d"]))) == 2
    with pytest.raises(RuntimeError, match="one more than the 2 rows"):
        t.add("e", [1], SamplingParams(), 0, [3], [3])


def test_a_request_added_twice_is_a_fault_that_names_it():
    t = table()
    t.add("a", [1], SamplingParams(), 0, [1], [1])
    with pytest.raises(RuntimeError, match="request a was scheduled as new twice"):
        t.add("a", [1], SamplingParams(), 0, [1], [1])


@pytest.mark.parametrize("seed", [0, 7, -5, 2**31, 2**63 - 1])
def test_any_seed_vllm_accepts_has_a_stream(seed):
    t = table()
    t.add("a", [1], SamplingParams(seed=seed, temperature=1.0), 0, [1], [1])
    assert t.sampling["seed"][0] == np.uint32(seed % 2**32)


@pytest.mark.parametrize("top_k", [-1, 0, 1, 2**31 - 1, 2**31, 2**63, 10**30])
def test_any_top_k_vllm_accepts_has_a_place(top_k):
    t = table()
    t.add("a", [1], SamplingParams(top_k=top_k, temperature=1.0), 0, [1], [1])
    assert t.sampling["top_k"][0] == (top_k if 0 < top_k < 2**31 else 0)


@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 1e-5},
        {"temperature": 2.0},
        {"top_p": 1e-30},
        {"top_p": 1.0},
        {"logprobs": 0},
        {"logprobs": 2**31 - 1},
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
    ],
)
def test_extreme_values_vllm_accepts_have_a_place(extreme):
    t = table()
    t.add("a", [1], SamplingParams(**{"temperature": 1.0, **extreme}), 0, [1], [1])
    assert np.isfinite(t.sampling["temperature"][0])
