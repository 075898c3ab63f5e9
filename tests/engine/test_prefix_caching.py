# SPDX-License-Identifier: Apache-2.0
"""A cache hit gives the tokens and logprobs of a cold run, and hits are as long as they can be."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from tests.engine.engines import engine, greedy

BLOCK = 128
CHUNK = 2048
ANSWER = 6
SHAPES = {
    "max_model_len": 6144,
    "max_num_seqs": 4,
    "max_num_batched_tokens": CHUNK,
    "additional_config": {"state_slots": 40, "debug_fill_nan": True},
}


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    logprobs: list[float]
    cached: int


def ask(llm, prompt: list[int]) -> Answer:
    [output] = llm.generate({"prompt_token_ids": prompt}, greedy(ANSWER), use_tqdm=False)
    tokens = list(output.outputs[0].token_ids)
    logprobs = [
        step[token].logprob for step, token in zip(output.outputs[0].logprobs, tokens, strict=True)
    ]
    return Answer(tokens, logprobs, output.num_cached_tokens)


@pytest.fixture(scope="module")
def draw():
    rng = np.random.default_rng(0)
    return lambda n: rng.integers(0, 400, n).tolist()


@pytest.fixture(scope="module")
def cold(tiny_checkpoint):
    """Answers of an engine without prefix caching."""
    with engine(tiny_checkpoint, enable_prefix_caching=False, **SHAPES) as llm:
        yield partial(ask, llm)


@pytest.fixture
def warm(tiny_checkpoint):
    """Answers of an engine with prefix caching, empty at first."""
    with engine(tiny_checkpoint, **SHAPES) as llm:
        yield partial(ask, llm)


def assert_same(got: Answer, expected: Answer) -> None:
    assert got.tokens == expected.tokens
    np.testing.assert_allclose(got.logprobs, expected.logprobs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("beyond", [-1, 0, 1, 63, 64])
def test_the_second_identical_prompt_hits_every_whole_block_but_the_last_token(
    cold, warm, draw, blocks, beyond
):
    """Acceptance row B1."""
    prompt = draw(blocks * BLOCK + beyond)
    first, second = warm(prompt), warm(prompt)
    assert first.cached == 0
    # The last token is always computed: its logits start the answer.
    assert second.cached == (len(prompt) - 1) // BLOCK * BLOCK
    assert_same(first, cold(prompt))
    assert_same(second, cold(prompt))


@pytest.mark.parametrize("shared", [127, 128, 129, 200, 256, 300])
def test_a_shared_beginning_is_hit_up_to_its_last_snapshot(cold, warm, draw, shared):
    """Acceptance rows B3 and B4."""
    system = draw(shared)
    warm(system)
    suffixed = system + draw(7)
    answer = warm(suffixed)
    # A snapshot exists at the last block boundary before the first prompt's last token.
    assert answer.cached == (shared - 1) // BLOCK * BLOCK
    assert_same(answer, cold(suffixed))


def test_a_system_prompt_of_5000_tokens_is_hit_by_every_later_conversation(cold, warm, draw):
    system = draw(5000)
    assert_same(warm(system), cold(system))
    for length in (1, 100, 300):
        prompt = system + draw(length)
        answer = warm(prompt)
        assert answer.cached == 4999 // BLOCK * BLOCK
        assert_same(answer, cold(prompt))


def test_hits_are_counted_in_vllm_s_metrics(tiny_checkpoint, draw):
    prompt = draw(300)
    with engine(tiny_checkpoint, **SHAPES) as llm:
        ask(llm, prompt), ask(llm, prompt)
        values = {m.name: getattr(m, "value", None) for m in llm.get_metrics()}
    assert values["vllm:prefix_cache_queries"] == 600
    assert values["vllm:prefix_cache_hits"] == 256


def test_a_reset_forgets_and_answers_stay_right(tiny_checkpoint, cold, draw):
    prompt = draw(290)
    with engine(tiny_checkpoint, **SHAPES) as llm:
        ask(llm, prompt)
        assert llm.reset_prefix_cache()
        answer = ask(llm, prompt)
    assert answer.cached == 0
    assert_same(answer, cold(prompt))


def test_caches_that_are_initialised_again_give_the_same_answers(tiny_checkpoint, cold, draw):
    """Acceptance row A6."""
    prompt = draw(200)
    with engine(tiny_checkpoint, **SHAPES) as llm:
        assert_same(ask(llm, prompt), cold(prompt))
        core = llm.llm_engine.engine_core.engine_core
        config = core.scheduler.kv_cache_config
        core.model_executor.driver_worker.worker.initialize_from_config(config)
        core.model_executor.driver_worker.worker.compile_or_warm_up_model()
        llm.reset_prefix_cache()
        assert_same(ask(llm, prompt), cold(prompt))
