# SPDX-License-Identifier: Apache-2.0
"""A prompt's logprobs are handed over once, whole, with a sampled token, in any order of events."""

import numpy as np
import pytest
from vllm.sampling_params import SamplingParams

from vllm_ironwood.runner.prompt_logprobs import Part, PromptLogprobs, parts_of_step
from vllm_ironwood.runner.requests import RequestTable
from vllm_ironwood.runner.sampler import Logprobs

LENGTH = 10


def step_of(*parts: Part) -> Logprobs:
    """A step's outputs; each row's values are its position in the prompt."""
    rows = np.full((LENGTH + 5, 3), -1)
    for part in parts:
        rows[part.rows] = np.arange(part.start, part.start + _count(part))[:, None]
    return Logprobs(rows.astype(np.int32), rows.astype(np.float32), rows[:, 0])


def _count(part: Part) -> int:
    return part.rows.stop - part.rows.start


def part(start: int, end: int, *, samples: bool, first_row: int = 0) -> Part:
    """Of request "a": positions ``start`` to ``end`` of a prompt of LENGTH + 1 tokens."""
    return Part("a", slice(first_row, first_row + end - start), start, LENGTH + 1, 1, samples)


def assert_whole(found: dict) -> None:
    assert set(found) == {"a"}
    assert found["a"].logprobs.shape == (LENGTH, 2)
    assert found["a"].selected_token_ranks.tolist() == list(range(LENGTH))


def test_chunks_are_put_together_and_go_with_the_first_sampled_token():
    prompts = PromptLogprobs()
    chunks = [part(0, 4, samples=False), part(4, 10, samples=False, first_row=3)]
    for chunk in chunks:
        [expected] = prompts.expect([chunk])
        assert prompts.add([expected], step_of(expected)) == {}
    [last] = prompts.expect([part(10, 10, samples=True)])
    assert_whole(prompts.add([last], step_of(last)))


def test_what_was_handed_over_is_not_computed_again():
    prompts = PromptLogprobs()
    [only] = prompts.expect([part(0, 10, samples=True)])
    assert_whole(prompts.add([only], step_of(only)))
    prompts.restart("a")
    assert prompts.expect([part(0, 10, samples=True)]) == []
    prompts.forget("a")
    assert len(prompts.expect([part(0, 10, samples=True)])) == 1  # another request of that name


def test_a_step_in_flight_when_its_request_began_anew_does_not_count():
    prompts = PromptLogprobs()
    [stale] = prompts.expect([part(0, 10, samples=True)])
    prompts.restart("a")
    [first] = prompts.expect([part(0, 6, samples=False)])
    assert prompts.add([stale], step_of(stale)) == {}
    assert prompts.add([first], step_of(first)) == {}
    [second] = prompts.expect([part(6, 10, samples=True)])
    assert_whole(prompts.add([second], step_of(second)))


def test_a_step_in_flight_when_its_request_is_gone_leaves_nothing_behind():
    prompts = PromptLogprobs()
    [late] = prompts.expect([part(0, 4, samples=False)])
    prompts.forget("a")
    assert prompts.add([late], step_of(late)) == {}
    assert prompts._collected == {}


@pytest.mark.parametrize(
    ("computed", "new", "count", "samples"),
    [(0, 7, 6, True), (0, 6, 6, False), (6, 1, 0, True), (0, 3, 3, False), (3, 4, 3, True)],
)
def test_a_part_has_the_positions_that_have_a_next_token_in_the_prompt(
    computed, new, count, samples
):
    table = RequestTable(
        max_requests=2, max_model_len=20, block_size=4, state_block_size=4, engine_seed=0
    )
    table.add("plain", range(7), SamplingParams(), computed, [1], [1])
    table.add("a", range(7), SamplingParams(prompt_logprobs=2), computed, [1], [1])
    new_tokens = np.array([2, new], np.int32)
    [found] = parts_of_step(table, ["plain", "a"], table.rows(["plain", "a"]), new_tokens)
    assert found == Part("a", slice(2, 2 + count), computed, 7, 2, samples)


def test_decoding_has_no_part():
    table = RequestTable(
        max_requests=1, max_model_len=20, block_size=4, state_block_size=4, engine_seed=0
    )
    table.add("a", range(7), SamplingParams(prompt_logprobs=2), 7, [1], [1])
    assert parts_of_step(table, ["a"], table.rows(["a"]), np.array([1], np.int32)) == []
