# SPDX-License-Identifier: Apache-2.0
"""Every field of a request is honoured or refused with HTTP 400; none is ignored."""

import numpy as np
import pytest
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.platforms import current_platform
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)

from vllm_ironwood.request_fields import HONOURED, REFUSED, UnsupportedRequestError

TOKENS = {"type": "token", "prompt_token_ids": [1, 2, 3]}

REFUSED_VALUES = {
    "prompt_logprob_token_ids": np.zeros((2, 1), np.int64),
    "prompt_logprob_start": 0,
    "extra_args": {"my_processor": 1},
    "watermarking": True,
    "routed_experts_prompt_start": 1,
    "trace_decode_token_ids": [1],
}

HONOURED_VALUES = {
    "n": 3,
    "temperature": 0.0,
    "top_p": 0.5,
    "top_k": 5,
    "seed": 7,
    "prompt_logprobs": 0,
    "structured_outputs": StructuredOutputsParams(json_object=True),
    "min_tokens": 2,
    "min_p": 0.1,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {3: -100.0},
    "allowed_token_ids": [1, 2],
    "bad_words": ["no"],
    "logprobs": 20,
    "logprob_token_ids": [5],
    "thinking_token_budget": 0,
    "stop": ["end", "."],
    "stop_token_ids": [2],
    "ignore_eos": True,
    "max_tokens": 1,
    "repetition_detection": RepetitionDetectionParams(max_pattern_size=2, min_count=3),
    "skip_reading_prefix_cache": True,
    "flat_logprobs": True,
    "detokenize": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "include_stop_str_in_output": True,
    "output_kind": RequestOutputKind.DELTA,
    "stream_interval": 4,
    "skip_clone": True,
}


def validate(params, inputs=TOKENS):
    current_platform.validate_request(inputs, params)


def test_every_field_of_vllm_is_honoured_or_refused():
    fields = sorted(SamplingParams.__struct_fields__)
    assert sorted([*HONOURED, *REFUSED]) == fields


def test_every_refused_field_has_a_case():
    assert set(REFUSED_VALUES) == set(REFUSED)


def test_every_honoured_field_that_a_user_can_set_has_a_case():
    derived = {field for field, who in HONOURED.items() if who.startswith("derived")}
    assert set(HONOURED_VALUES) == set(HONOURED) - derived


def test_defaults_are_accepted():
    validate(SamplingParams())
    validate(SamplingParams(temperature=0))


@pytest.mark.parametrize("field", REFUSED_VALUES)
def test_refused_field_is_http_400_that_names_it(field):
    with pytest.raises(UnsupportedRequestError) as refusal:
        validate(SamplingParams(**{field: REFUSED_VALUES[field]}))
    response = create_error_response(refusal.value).error
    assert (response.code, response.param) == (400, field)
    assert field in response.message
    assert "not supported" in response.message


@pytest.mark.parametrize("field", HONOURED_VALUES)
def test_honoured_field_is_accepted(field):
    validate(SamplingParams(**{field: HONOURED_VALUES[field]}))


@pytest.mark.parametrize(
    "empty",
    [
        {"logit_bias": {}},
        {"bad_words": []},
        {"extra_args": {}},
        {"watermarking": False},
        {"thinking_token_budget": -1},
        {"min_p": 0},
        {"repetition_penalty": 1},
        {"top_k": -1},
        {"seed": -1},
    ],
    ids=str,
)
def test_value_that_asks_for_nothing_is_accepted(empty):
    validate(SamplingParams(**empty))


@pytest.mark.parametrize("number", [None, 0, 1, 5, 20, -1])
def test_logprobs_of_the_likeliest_are_accepted(number):
    validate(SamplingParams(logprobs=number))


@pytest.mark.parametrize("number", [-1, 21])
def test_more_prompt_logprobs_than_a_step_has_room_for_are_refused(number):
    with pytest.raises(
        UnsupportedRequestError, match=f"prompt_logprobs={number} .* ask for 0 to 20"
    ):
        validate(SamplingParams(prompt_logprobs=number))


def test_refusal_is_also_a_value_error_for_callers_of_the_library():
    with pytest.raises(ValueError, match="trace_decode_token_ids is not supported yet"):
        validate(SamplingParams(trace_decode_token_ids=[1]))


def test_pooling_is_refused():
    with pytest.raises(UnsupportedRequestError, match="not pooling"):
        validate(PoolingParams(task="embed"))


@pytest.mark.parametrize("kind", ["multimodal", "embeds", "enc_dec"])
def test_prompt_that_is_not_tokens_is_refused(kind):
    with pytest.raises(UnsupportedRequestError, match=f"not '{kind}' inputs"):
        validate(SamplingParams(), {"type": kind})
