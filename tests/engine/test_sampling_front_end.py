# SPDX-License-Identifier: Apache-2.0
"""Fields that vLLM's front end, scheduler or cache manager act on keep their effect here."""

import pytest
from vllm import SamplingParams
from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind

from tests.engine.engines import draw_prompts, engine

PROMPT = draw_prompts(2, 256, longest=290, seed=2)[-1]
FORCED = 77  # the one token that its bias leaves


@pytest.fixture(scope="module", params=[True, False], ids=["async", "sync"])
def llm(request, tiny_checkpoint):
    with engine(
        tiny_checkpoint,
        max_num_batched_tokens=129,
        max_num_seqs=8,
        async_scheduling=request.param,
    ) as running:
        yield running


def params_of(**fields) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 24, "ignore_eos": True, **fields})


def one(llm, **fields):
    [output] = llm.generate([{"prompt_token_ids": PROMPT}], params_of(**fields), use_tqdm=False)
    return output


def stream(llm, **fields) -> list[list[int]]:
    """The token ids of every output of one request."""
    core = llm.llm_engine
    core.add_request("streamed", {"prompt_token_ids": PROMPT}, params_of(**fields))
    outputs = []
    while core.has_unfinished_requests():
        outputs += [list(output.outputs[0].token_ids) for output in core.step()]
    return outputs


def test_a_repeating_answer_is_ended(llm):
    repeats = {"logit_bias": {FORCED: 100.0}}
    assert len(one(llm, **repeats).outputs[0].token_ids) == 24
    detection = RepetitionDetectionParams(max_pattern_size=2, min_count=6)
    stopped = one(llm, **repeats, repetition_detection=detection).outputs[0]
    assert 6 <= len(stopped.token_ids) < 24
    assert stopped.finish_reason != "length"


def test_the_prefix_cache_is_not_read_by_who_does_not_want_it(llm):
    first = one(llm)
    again = one(llm)
    unread = one(llm, skip_reading_prefix_cache=True)
    assert again.num_cached_tokens > 0 == unread.num_cached_tokens
    assert first.outputs[0].token_ids == again.outputs[0].token_ids == unread.outputs[0].token_ids


def test_special_tokens_are_spaced_as_asked(llm):
    end = llm.get_tokenizer().eos_token_id
    special = {"logit_bias": {end: 100.0}, "max_tokens": 3, "skip_special_tokens": False}
    spaced = one(llm, **special, spaces_between_special_tokens=True).outputs[0]
    close = one(llm, **special, spaces_between_special_tokens=False).outputs[0]
    assert spaced.token_ids == close.token_ids == [end] * 3
    assert spaced.text.replace(" ", "") == close.text.replace(" ", "")


def test_outputs_come_as_deltas_as_all_so_far_or_only_at_the_end(llm):
    whole = list(one(llm).outputs[0].token_ids)
    deltas = stream(llm, output_kind=RequestOutputKind.DELTA)
    assert [token for delta in deltas for token in delta] == whole
    assert stream(llm) == [whole[:n] for n in range(1, 25)]
    assert stream(llm, output_kind=RequestOutputKind.FINAL_ONLY) == [whole]


def test_a_stream_interval_bundles_tokens(llm):
    outputs = stream(llm, output_kind=RequestOutputKind.DELTA, stream_interval=8)
    lengths = [len(delta) for delta in outputs]
    assert sum(lengths) == 24
    assert max(lengths) == 8
    assert len(lengths) <= 24 // 8 + 1


def test_parameters_may_be_shared_between_requests_without_a_copy(llm):
    shared = params_of(skip_clone=True, min_tokens=4, presence_penalty=1.0)
    inputs = [{"prompt_token_ids": PROMPT[:n]} for n in (3, 140, 290)]
    together = llm.generate(inputs, shared, use_tqdm=False)
    copied = llm.generate(inputs, params_of(min_tokens=4, presence_penalty=1.0), use_tqdm=False)
    for one_output, other in zip(together, copied, strict=True):
        assert one_output.outputs[0].token_ids == other.outputs[0].token_ids
