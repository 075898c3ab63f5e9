# SPDX-License-Identifier: Apache-2.0
"""Logprobs of what was sampled: every number a request may ask for, and every mode."""

import numpy as np
import pytest
from vllm import SamplingParams

from tests.engine.engines import Reference, draw_prompts, engine

PROMPTS = draw_prompts(6, 256, longest=100, seed=9)
MODES = ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]


@pytest.fixture(scope="module", params=MODES)
def llm(request, tiny_checkpoint):
    with engine(
        tiny_checkpoint,
        max_num_batched_tokens=129,
        max_num_seqs=8,
        max_logprobs=-1,
        logprobs_mode=request.param,
    ) as running:
        running.mode = request.param
        yield running


@pytest.fixture(scope="module")
def reference(tiny_checkpoint) -> Reference:
    return Reference(tiny_checkpoint)


def expected_scores(reference, mode, prompt, fields) -> np.ndarray:
    """``[V]`` of the first token after the prompt, from transformers in float32."""
    scores = reference.logits_after(prompt)
    if mode.startswith("processed"):
        scores[fields["barred"]] = -np.inf
        if fields["temperature"]:
            scores /= fields["temperature"]
            scores[scores < np.sort(scores)[-fields["top_k"]]] = -np.inf
    if mode.endswith("logprobs"):
        scores -= scores.max()
        scores -= np.log(np.exp(scores).sum())
    return scores


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_g2_every_number_of_logprobs_in_one_batch(llm, reference, temperature):
    """Acceptance row G2: None, 0, 1, 5, 20 and -1 beside each other."""
    numbers = [None, 0, 1, 5, 20, -1]
    fields = {"temperature": temperature, "top_k": 30, "barred": 17}
    params = [
        SamplingParams(
            temperature=temperature,
            top_k=30,
            seed=4,
            max_tokens=1,
            logit_bias={17: -1e30},
            logprobs=number,
        )
        for number in numbers
    ]
    inputs = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = llm.generate(inputs, params, use_tqdm=False)
    for number, prompt, output in zip(numbers, PROMPTS, outputs, strict=True):
        [completion] = output.outputs
        if number is None:
            assert completion.logprobs is None
            continue
        [entry] = completion.logprobs
        scores = expected_scores(reference, llm.mode, prompt, fields)
        count = len(scores) if number == -1 else number
        assert len(entry) in (count, count + 1)
        for token, found in entry.items():
            if scores[token] > -1e29 or found.logprob > -1e29:
                assert found.logprob == pytest.approx(scores[token], abs=1e-3)
        top = np.sort(scores)[::-1][:count]
        listed = sorted((found.logprob for found in entry.values()), reverse=True)[:count]
        likely = top > -1e29
        np.testing.assert_allclose(np.asarray(listed)[likely], top[likely], atol=1e-3)


def test_logprobs_of_tokens_by_id(llm, reference):
    """Beside requests for the likeliest ones and for none, of fewer and of more columns."""
    asked = [[3, 250, 17], [], [9], list(range(128)), [], [255, 0]]
    fields = {"temperature": 0.7, "top_k": 30, "barred": 17}
    params = [
        SamplingParams(
            temperature=0.7,
            top_k=30,
            seed=4,
            max_tokens=1,
            logit_bias={17: -1e30},
            logprob_token_ids=ids or None,
            logprobs=None if ids else number,
        )
        for ids, number in zip(asked, [None, 5, None, None, None, None], strict=True)
    ]
    inputs = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = llm.generate(inputs, params, use_tqdm=False)
    for ids, prompt, each, output in zip(asked, PROMPTS, params, outputs, strict=True):
        [completion] = output.outputs
        if each.num_logprobs is None:
            assert completion.logprobs is None
            continue
        [entry] = completion.logprobs
        [token] = completion.token_ids
        scores = expected_scores(reference, llm.mode, prompt, fields)
        if ids:
            assert set(entry) == {*ids, token}
        else:
            assert len(entry) in (5, 6)
        for reported, found in entry.items():
            if scores[reported] > -1e29 or found.logprob > -1e29:
                assert found.logprob == pytest.approx(scores[reported], abs=1e-3)


def test_prompt_logprobs_are_of_the_same_kind(llm, reference):
    """Logits or logprobs, as the mode says; whatever changes the answer does not change them."""
    prompt = PROMPTS[1][:12]
    params = SamplingParams(
        temperature=0.7, max_tokens=1, prompt_logprobs=2, logit_bias={prompt[1]: 50.0}
    )
    [output] = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    for position, entry in enumerate(output.prompt_logprobs[1:], start=1):
        scores = reference.logits_after(prompt[:position])
        if llm.mode.endswith("logprobs"):
            scores -= scores.max()
            scores -= np.log(np.exp(scores).sum())
        for token, found in entry.items():
            assert found.logprob == pytest.approx(scores[token], abs=1e-3)
