# SPDX-License-Identifier: Apache-2.0
"""Every answer fits its grammar, and those beside it are what they are alone."""

import json
import re

import pytest
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

from tests.engine.engines import draw_prompts, engine

PROMPTS = draw_prompts(9, 256, longest=290, seed=2)
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["kind", "legs", "tags"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= "<" ("x" | "y") "," ("1" | "2") ">"'


@pytest.fixture(scope="module", params=[True, False], ids=["async", "sync"])
def llm(request, tiny_checkpoint):
    with engine(
        tiny_checkpoint,
        max_num_batched_tokens=129,
        max_num_seqs=8,
        async_scheduling=request.param,
    ) as running:
        yield running


def structured(temperature=1.0, max_tokens=200, **grammar) -> SamplingParams:
    return SamplingParams(
        temperature=temperature,
        seed=3,
        max_tokens=max_tokens,
        structured_outputs=StructuredOutputsParams(**grammar),
    )


def ask(llm, params, prompts=PROMPTS) -> list[str]:
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(inputs, params, use_tqdm=False)
    # Not `text`: it starts with the rest of a character that a random prompt ended in.
    tokenizer = llm.get_tokenizer()
    return [tokenizer.decode(o.outputs[0].token_ids, skip_special_tokens=True) for o in outputs]


def fits_schema(text: str) -> bool:
    value = json.loads(text)
    return (
        set(value) == {"kind", "legs", "tags"}
        and value["kind"] in ("cat", "dog")
        and 0 <= value["legs"] <= 99
        and 1 <= len(value["tags"]) <= 3
        and set(value["tags"]) <= {"a", "b"}
    )


KINDS = {
    "choice": ({"choice": ["yes", "no", "perhaps"]}, lambda t: t in ("yes", "no", "perhaps")),
    "regex": ({"regex": r"[a-c]{3}-\d{2}"}, lambda t: bool(re.fullmatch(r"[a-c]{3}-\d{2}", t))),
    "json": ({"json": json.dumps(SCHEMA), "disable_any_whitespace": True}, fits_schema),
    "grammar": ({"grammar": GRAMMAR}, lambda t: bool(re.fullmatch("<[xy],[12]>", t))),
}


@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_fits(llm, kind, temperature):
    grammar, fits = KINDS[kind]
    for text in ask(llm, structured(temperature, **grammar)):
        assert fits(text), text


def test_answers_in_a_mixed_batch_are_what_they_are_alone(llm):
    """Rows of the bitmask belong to their requests, whatever stands beside them."""
    kinds = [*KINDS, None]
    params = [
        SamplingParams(temperature=0.8, seed=3, max_tokens=30)
        if (kind := kinds[i % len(kinds)]) is None
        else structured(0.8, **KINDS[kind][0])
        for i in range(len(PROMPTS))
    ]
    alone = [ask(llm, each, [prompt])[0] for prompt, each in zip(PROMPTS, params, strict=True)]
    assert ask(llm, params) == alone
    for i, text in enumerate(alone):
        kind = kinds[i % len(kinds)]
        assert kind is None or KINDS[kind][1](text)


def test_a_grammar_goes_with_min_tokens_bias_and_penalties(llm):
    params = structured(0, regex="[ab]{6,9}")
    params.logit_bias = {5: 3.0}
    params.presence_penalty = 2.0
    params.min_tokens = 3
    for text in ask(llm, params):
        assert re.fullmatch("[ab]{6,9}", text)


def test_an_impossible_grammar_fails_alone(llm):
    with pytest.raises(VLLMValidationError, match=r"(?i)regex"):
        ask(llm, structured(regex="(unclosed"))
    assert ask(llm, structured(choice=["yes"])) == ["yes"] * len(PROMPTS)


def test_preempted_requests_keep_their_place_in_the_grammar(llm, tiny_checkpoint):
    params = structured(1.0, regex="[a-f]{120}")
    alone = [ask(llm, params, [prompt])[0] for prompt in PROMPTS]
    with engine(
        tiny_checkpoint,
        max_num_batched_tokens=129,
        max_num_seqs=8,
        num_gpu_blocks_override=6,
        async_scheduling=llm.llm_engine.vllm_config.scheduler_config.async_scheduling,
    ) as starving:
        assert ask(starving, params) == alone
        [preemptions] = [m for m in starving.get_metrics() if m.name == "vllm:num_preemptions"]
        assert preemptions.value > 0
    for text in alone:
        assert re.fullmatch("[a-f]{120}", text)


@pytest.mark.parametrize("backend", ["xgrammar", "guidance", "outlines"])
def test_every_backend_of_vllm_that_works_is_honoured(tiny_checkpoint, backend):
    """Numbers have no bounds here: outlines does not enforce them."""
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "legs": {"enum": [2, 4]}}}
    grammars = {
        "choice": KINDS["choice"][0],
        "regex": KINDS["regex"][0],
        "json": {"json": json.dumps(schema), "disable_any_whitespace": True},
    }
    with engine(
        tiny_checkpoint,
        max_num_batched_tokens=129,
        max_num_seqs=8,
        structured_outputs_config={"backend": backend},
    ) as llm:
        for kind, grammar in grammars.items():
            for text in ask(llm, structured(1.0, **grammar), PROMPTS[:3]):
                assert KINDS[kind][1](text), text
