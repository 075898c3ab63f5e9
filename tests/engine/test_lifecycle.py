# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to a request, and to those beside it, its answer stays what it is alone."""

import gc

import numpy as np
import pytest
from vllm import SamplingParams

from tests.engine.engines import draw_prompts, engine, generate, greedy

VOCAB = 256


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return draw_prompts(9, VOCAB, longest=290, seed=2)


@pytest.fixture(scope="module")
def alone(tiny_checkpoint, prompts) -> list[list[int]]:
    """Each prompt's answer with the engine to itself and nothing cached."""
    with engine(tiny_checkpoint, enable_prefix_caching=False) as llm:
        return [generate(llm, [prompt], greedy(48))[0][0] for prompt in prompts]


def core(llm):
    return llm.llm_engine.engine_core.engine_core


def num_preemptions(llm) -> int:
    [metric] = [m for m in llm.get_metrics() if m.name == "vllm:num_preemptions"]
    return metric.value


def assert_nothing_is_held(llm) -> None:
    """With no request left, every page and slot is free and no row is taken."""
    manager = core(llm).scheduler.kv_cache_manager
    for pool in {m.block_pool for m in manager.coordinator.single_type_managers}:
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    llm.generate({"prompt_token_ids": [1]}, SamplingParams(max_tokens=2), use_tqdm=False)
    core(llm).step_fn()
    worker = core(llm).model_executor.driver_worker.worker
    assert len(worker.model_runner.requests) == 0


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("starved", ["pages", "slots"])
def test_preempted_requests_resume_to_the_same_answer(
    tiny_checkpoint, prompts, alone, starved, caching, asynchronous
):
    """Acceptance row A3."""
    limits = {
        "pages": {"num_gpu_blocks_override": 6},
        "slots": {"additional_config": {"state_slots": 6}},
    }[starved]
    with engine(
        tiny_checkpoint,
        enable_prefix_caching=caching,
        async_scheduling=asynchronous,
        max_num_batched_tokens=129,
        max_num_seqs=8,
        **limits,
    ) as llm:
        answers = generate(llm, prompts, greedy(48))
        assert [tokens for tokens, _ in answers] == alone
        if starved == "pages":
            assert num_preemptions(llm) > 0
        assert_nothing_is_held(llm)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_one_request_at_a_time_back_to_back(tiny_checkpoint, prompts, alone, asynchronous):
    """Acceptance row A4: one request replaces another in the same step."""
    with engine(tiny_checkpoint, max_num_seqs=1, async_scheduling=asynchronous) as llm:
        answers = generate(llm, prompts, greedy(48))
        assert [tokens for tokens, _ in answers] == alone


@pytest.mark.parametrize("length", [127, 128, 129, 255, 256, 257, 383, 384, 385, 440])
def test_requests_around_the_capacity_of_the_pool_finish_in_few_steps(starving, length):
    """Acceptance row B6: none is prefilled again and again for want of a page or a slot."""
    prompts = draw_prompts(3, VOCAB, longest=length, seed=length)
    prompts = [(prompt * length)[:length] for prompt in prompts]
    for i, prompt in enumerate(prompts):
        starving.llm_engine.add_request(f"{length}-{i}", {"prompt_token_ids": prompt}, greedy(16))
    # Alone: its chunks and 16 tokens; together each may be preempted once by each other.
    chunks = -(-length // 129)
    allowed = len(prompts) * (len(prompts) * chunks + 16)
    finished = steps = 0
    while starving.llm_engine.has_unfinished_requests():
        finished += sum(output.finished for output in starving.llm_engine.step())
        steps += 1
        assert steps <= allowed
    assert finished == len(prompts)


@pytest.fixture(scope="module")
def starving(tiny_checkpoint):
    """Pages for one request of the longest length and a little more."""
    with engine(
        tiny_checkpoint, max_num_batched_tokens=129, max_num_seqs=8, num_gpu_blocks_override=6
    ) as llm:
        yield llm


@pytest.mark.parametrize("asynchronous", [True, False])
def test_aborts_at_any_point_leave_the_others_right(tiny_checkpoint, prompts, alone, asynchronous):
    rng = np.random.default_rng(0)
    with engine(
        tiny_checkpoint,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        async_scheduling=asynchronous,
    ) as llm:
        kept, finished = {}, {}
        for i, prompt in enumerate(prompts):
            for doomed in (False, True):
                name = f"{i}-{doomed}"
                llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, greedy(48))
                kept[name] = None if doomed else alone[i]
        doomed = [name for name in kept if kept[name] is None]
        while llm.llm_engine.has_unfinished_requests():
            for output in llm.llm_engine.step():
                if output.finished:
                    finished[output.request_id] = list(output.outputs[0].token_ids)
            if doomed and rng.random() < 0.3:
                llm.llm_engine.abort_request([doomed.pop(rng.integers(len(doomed)))])
        for name, answer in kept.items():
            if answer is not None:
                assert finished[name] == answer, name
        assert_nothing_is_held(llm)


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_a_seed_gives_the_same_tokens_in_any_batch_and_after_preemption(
    tiny_checkpoint, prompts, temperature
):
    params = [
        SamplingParams(
            temperature=temperature, top_k=50, top_p=0.9, seed=i, max_tokens=32, logprobs=1
        )
        for i in range(len(prompts))
    ]
    with engine(tiny_checkpoint) as llm:
        alone = [generate(llm, [p], [s])[0][0] for p, s in zip(prompts, params, strict=True)]
    with engine(
        tiny_checkpoint, num_gpu_blocks_override=8, max_num_batched_tokens=63, max_num_seqs=8
    ) as llm:
        together = [tokens for tokens, _ in generate(llm, prompts, params)]
    assert together == alone
    assert len({tuple(tokens) for tokens in alone}) == len(alone)


def test_three_rounds_of_start_and_stop_in_one_process(tiny_checkpoint, prompts, alone):
    for _ in range(3):
        with engine(tiny_checkpoint) as llm:
            assert generate(llm, prompts[:2], greedy(48))[1][0] == alone[1]
        del llm
        gc.collect()


def test_an_identical_prompt_is_answered_from_the_cache_with_the_same_tokens(
    tiny_checkpoint, prompts, alone
):
    longest = len(prompts) - 1
    with engine(tiny_checkpoint) as llm:
        for round_number in range(2):
            [output] = llm.generate(
                {"prompt_token_ids": prompts[longest]}, greedy(48), use_tqdm=False
            )
            assert list(output.outputs[0].token_ids) == alone[longest]
            assert output.num_cached_tokens == (256 if round_number else 0)
