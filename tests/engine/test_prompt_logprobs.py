# SPDX-License-Identifier: Apache-2.0
"""Logprobs of a prompt's own tokens are those of the whole context, however it was cut."""

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from tests.engine.engines import Reference, draw_prompts, engine

PROMPTS = draw_prompts(7, 256, longest=290, seed=5)
# One token beyond a chunk's end, whether the chunk ends with a block or with the step's tokens.
BEYOND_A_CHUNK = [PROMPTS[-1][:n] for n in (128, 129, 130, 257)]


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


@pytest.mark.parametrize("which", range(len(BEYOND_A_CHUNK)))
def test_the_last_token_may_stand_in_a_chunk_of_its_own(llm, expected, which):
    prompt = BEYOND_A_CHUNK[which]
    params = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=1)
    [output] = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    found = [entry[token].logprob for entry, token in zip(output.prompt_logprobs[1:], prompt[1:])]
    rows = expected[-1][: len(prompt) - 1]  # of the longer prompt that this one begins
    np.testing.assert_allclose(found, rows[np.arange(len(rows)), prompt[1:]], atol=1e-4)


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


def test_a_preempted_request_reports_its_prompt_once(llm, tiny_checkpoint):
    """Computed again when it resumes, they are neither doubled nor lost."""

    def ask_long(running):
        params = SamplingParams(
            temperature=0,
            max_tokens=140,
            ignore_eos=True,
            prompt_logprobs=1,
            output_kind=RequestOutputKind.DELTA,
        )
        core, found = running.llm_engine, {}
        for i, prompt in enumerate(PROMPTS):
            core.add_request(f"p{i}", {"prompt_token_ids": prompt}, params)
        while core.has_unfinished_requests():
            for output in core.step():
                reported = found.setdefault(output.request_id, [])
                reported += output.prompt_logprobs or []
        return [[set(entry or ()) for entry in found[f"p{i}"]] for i in range(len(PROMPTS))]

    with engine(
        tiny_checkpoint,
        max_num_batched_tokens=129,
        max_num_seqs=8,
        num_gpu_blocks_override=6,
        async_scheduling=llm.llm_engine.vllm_config.scheduler_config.async_scheduling,
    ) as starving:
        assert ask_long(starving) == ask_long(llm)
        [preemptions] = [m for m in starving.get_metrics() if m.name == "vllm:num_preemptions"]
        assert preemptions.value > 0
