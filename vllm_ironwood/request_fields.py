# SPDX-License-Identifier: Apache-2.0
"""Which fields of a request are honoured and which are refused: none is ignored.

A refused field makes that request an HTTP 400 (an exception of ``LLM.generate``) when its
value is not the default; the others go on. Every field of vLLM's ``SamplingParams`` is in one
of the two tables below; a test fails for a field that is in neither.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

from vllm_ironwood.runner.limits import (
    LONGEST_BAD_WORD,
    MOST_BAD_WORDS,
    MOST_PROMPT_LOGPROBS,
)

# Field -> who honours it.
HONOURED: Mapping[str, str] = {
    "n": "vLLM's front end: one request each",
    "temperature": "the sampler, on the device",
    "top_p": "the sampler, on the device",
    "top_k": "the sampler, on the device",
    "min_p": "the sampler, on the device",
    "presence_penalty": "the sampler, on the device",
    "frequency_penalty": "the sampler, on the device",
    "repetition_penalty": "the sampler, on the device; over prompt and output",
    "logit_bias": "the sampler, on the device",
    "allowed_token_ids": "the sampler, on the device",
    "bad_words": "the sampler, on the device; up to 128 token sequences of up to 17 tokens",
    "min_tokens": "the sampler, on the device",
    "structured_outputs": "vLLM's grammars; the bitmask is applied on the device",
    "seed": "the sampler, on the device: a stream of its own for each request",
    "logprobs": "the sampler, on the device; up to --max-logprobs, or -1 for all",
    "logprob_token_ids": "the sampler, on the device; up to 128",
    "thinking_token_budget": "the sampler, on the device; with --reasoning-parser or -config",
    "prompt_logprobs": "the sampler, on the device; up to 20",
    "stop": "vLLM's detokenizer",
    "stop_token_ids": "vLLM's scheduler",
    "ignore_eos": "vLLM's scheduler",
    "max_tokens": "vLLM's scheduler",
    "repetition_detection": "vLLM's scheduler",
    "skip_reading_prefix_cache": "vLLM's cache manager",
    "flat_logprobs": "vLLM's front end",
    "detokenize": "vLLM's front end",
    "skip_special_tokens": "vLLM's front end",
    "spaces_between_special_tokens": "vLLM's front end",
    "include_stop_str_in_output": "vLLM's front end",
    "output_kind": "vLLM's front end",
    "stream_interval": "vLLM's front end",
    "skip_clone": "vLLM's front end",
    "output_text_buffer_length": "derived by vLLM",
    "_eos_token_id": "derived by vLLM",
    "_all_stop_token_ids": "derived by vLLM",
    "_bad_words_token_ids": "derived by vLLM",
    "_watermarking_skipped": "derived by vLLM",
}


def _unless(*defaults: Any) -> Callable[[Any], bool]:
    return lambda value: value not in defaults


def _if_given(value: Any) -> bool:
    return value is not None


def _if_not_empty(value: Any) -> bool:
    return bool(value)


# Field -> whether a value asks for something (the defaults ask for nothing).
REFUSED: Mapping[str, Callable[[Any], bool]] = {
    "prompt_logprob_token_ids": _if_given,
    "prompt_logprob_start": _if_given,
    "extra_args": _if_not_empty,
    "watermarking": _unless(None, False),
    "routed_experts_prompt_start": _unless(0),
    "trace_decode_token_ids": _if_not_empty,
}

# Names that clients know, where they differ from the field's.
_ALSO_CALLED: Mapping[str, str] = {
    "extra_args": "vllm_xargs or kv_transfer_params",
}


class UnsupportedRequestError(VLLMValidationError, ValueError):
    """A request asks for what is not supported yet: HTTP 400 with the field as ``param``."""


def check(processed_inputs: Mapping[str, Any], params: Any) -> None:
    """Refuse a request that asks for anything that would be ignored.

    Args:
        processed_inputs: the prompt as vLLM's renderer left it.
        params: ``SamplingParams`` or ``PoolingParams``.

    Raises:
        UnsupportedRequestError: names the field.
    """
    kind = processed_inputs.get("type")
    if kind != "token":
        raise UnsupportedRequestError(
            f"only text and token prompts are supported, not {kind!r} inputs", parameter="prompt"
        )
    if not isinstance(params, SamplingParams):
        raise UnsupportedRequestError("only generation is supported, not pooling or embedding")
    for field, asks in REFUSED.items():
        value = getattr(params, field)
        if asks(value):
            raise _refusal(field, value)
    if (
        params.prompt_logprobs is not None
        and not 0 <= params.prompt_logprobs <= MOST_PROMPT_LOGPROBS
    ):
        raise UnsupportedRequestError(
            f"prompt_logprobs={params.prompt_logprobs} is not supported; "
            f"ask for 0 to {MOST_PROMPT_LOGPROBS}",
            parameter="prompt_logprobs",
        )
    _check_bad_words(params.bad_words_token_ids or ())


def _check_bad_words(words: Sequence[Sequence[int]]) -> None:
    longest = max(map(len, words), default=0)
    if len(words) > MOST_BAD_WORDS or longest > LONGEST_BAD_WORD:
        raise UnsupportedRequestError(
            f"bad_words are {len(words)} token sequences of up to {longest} tokens; "
            f"up to {MOST_BAD_WORDS} of up to {LONGEST_BAD_WORD} are supported",
            parameter="bad_words",
        )


def _refusal(field: str, value: Any) -> UnsupportedRequestError:
    name = _ALSO_CALLED.get(field, field)
    shown = repr(value) if isinstance(value, (int, float, bool)) else "given"
    return UnsupportedRequestError(
        f"{name} is not supported yet ({field} is {shown}); leave it out", parameter=field
    )
