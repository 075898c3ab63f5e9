# SPDX-License-Identifier: Apache-2.0
"""`LLM(...)` answers as transformers does: every token and logprob, however it is scheduled."""

import pytest

from tests.engine.engines import Reference, draw_prompts, engine, generate, greedy


@pytest.fixture(scope="module", params=["demo", "tiny"])
def checkpoint(request, demo_checkpoint, tiny_checkpoint):
    return {"demo": demo_checkpoint, "tiny": tiny_checkpoint}[request.param]


@pytest.fixture(scope="module")
def reference(checkpoint) -> Reference:
    return Reference(checkpoint)


@pytest.mark.parametrize("chunk", [16, 63, 512])
def test_greedy_tokens_and_logprobs_equal_the_reference(checkpoint, reference, chunk):
    with engine(checkpoint, max_num_batched_tokens=chunk) as llm:
        for batch in (1, 3, 17):
            prompts = draw_prompts(batch, reference.vocab_size, longest=300, seed=chunk + batch)
            answers = generate(llm, prompts, greedy(64))
            for prompt, (tokens, logprobs) in zip(prompts, answers, strict=True):
                assert len(tokens) == 64
                reference.assert_greedy(prompt, tokens, logprobs, tolerance=1e-3)


@pytest.mark.parametrize("caching", [False, True])
def test_an_answer_does_not_depend_on_what_else_is_in_the_batch(checkpoint, reference, caching):
    prompts = draw_prompts(12, reference.vocab_size, longest=300, seed=9)
    with engine(checkpoint, enable_prefix_caching=caching) as llm:
        together = generate(llm, prompts, greedy(32))
        for prompt, (tokens, logprobs) in zip(prompts, together, strict=True):
            [(alone, alone_logprobs)] = generate(llm, [prompt], greedy(32))
            assert tokens == alone
            assert logprobs == pytest.approx(alone_logprobs, abs=1e-4)
