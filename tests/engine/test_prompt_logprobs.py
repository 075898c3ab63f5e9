# SPDX-License-Identifier: Apache-2.0
"""Logprobs of a prompt's own tokens are those of the whole context, however it was cut."""

import numpy as np
import pytest
from vllm import SamplingParams

from tests.engine.engines import Reference, draw_prompts, engine

PROMPTS = draw_prompts(7, 256, longest=290, seed=5)


@pytest.fixture(scope="module", params=[True, False], ids=["async", "sync"])
def llm(request, tiny_checkpoint):
    with engine(
        tiny_checkpoint,
        max_num_batched_tokens=129,
        max_num_seqs=8,
        async_scheduling=request.param,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def expected(tiny_checkpoint) -> list[np.ndarray]:
    """Of each prompt: ``[len - 1, V]`` by transformers in float32."""
    reference = Reference(tiny_checkpoint)
    return [reference.logprobs_of_prompt(prompt) for prompt in PROMPTS]


def ask(llm, numbers) -> list:
    params = [SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=n) for n in numbers]
    inputs = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    return [o.prompt_logprobs for o in llm.generate(inputs, params, use_tqdm=False)]


@pytest.mark.parametrize("number", [0, 1, 20])
def test_g4_they_equal_the_full_context(llm, expected, number):
    """Acceptance row G4: chunks of at most 129 tokens, several prompts in a step."""
    for _ in range(2):  # the second time the prefix cache could answer, but must not
        for prompt, found, logprobs in zip(
            PROMPTS, ask(llm, [number] * len(PROMPTS)), expected, strict=True
        ):
            assert found[0] is None
            assert len(found) == len(prompt)
            for position, entry in enumerate(found[1:]):
                row, token = logprobs[position], prompt[position + 1]
                assert entry[token].logprob == pytest.approx(row[token], abs=1e-4)
                better = (row > row[token] + 1e-4).sum(), (row > row[token] - 1e-4).sum()
                assert better[0] < entry[token].rank <= better[1] + 1
                assert len(entry) in (number, number + 1)
                likeliest = sorted((e.logprob for e in entry.values()), reverse=True)[:number]
                np.testing.assert_allclose(
                    likeliest, np.sort(row)[::-1][: len(likeliest)], atol=1e-4
                )


def test_only_who_asks_gets_them(llm, expected):
    numbers = [None, 2, None, 0, 5, None, 1]
    found = ask(llm, numbers)
    for number, prompt, entries in zip(numbers, PROMPTS, found, strict=True):
        assert (entries is None) == (number is None)
        assert entries is None or len(entries) == len(prompt)


def test_an_abort_in_the_middle_of_a_prompt_leaves_nothing_behind(llm):
    core = llm.llm_engine.engine_core.engine_core
    params = SamplingParams(max_tokens=2, prompt_logprobs=1)
    llm.llm_engine.add_request("doomed", {"prompt_token_ids": PROMPTS[-1]}, params)
    llm.llm_engine.step()
    llm.llm_engine.step()
    llm.llm_engine.abort_request(["doomed"])
    ask(llm, [1] * len(PROMPTS))
    runner = core.model_executor.driver_worker.worker.model_runner
    assert runner._prompts._collected == {}
