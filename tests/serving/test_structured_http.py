# SPDX-License-Identifier: Apache-2.0
"""Structured output over HTTP, after a model has reasoned, and as tool calls."""

import asyncio
import json
import random

import aiohttp
import pytest
from transformers import AutoTokenizer

from tests.serving.server import Server

ARGUMENTS = [
    "--max-model-len=512",
    "--max-num-seqs=16",
    "--max-num-batched-tokens=256",
    "--reasoning-parser=qwen3",
    "--enable-auto-tool-choice",
    "--tool-call-parser=qwen3_coder",
    '--additional-config={"forbid_recompilation": true, "cpu_cache_gib": 0.25}',
]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "strict": True, "parameters": SCHEMA},
}


@pytest.fixture(scope="module")
def server(demo_checkpoint, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "server.log"
    server = Server(demo_checkpoint, log, *ARGUMENTS)
    try:
        yield server.wait_until_ready()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def tokenizer(demo_checkpoint):
    return AutoTokenizer.from_pretrained(demo_checkpoint)


@pytest.fixture(scope="module")
def end_of_thinking(tokenizer) -> str:
    return str(tokenizer.convert_tokens_to_ids("</think>"))


@pytest.fixture(scope="module")
def no_whitespace(tokenizer) -> dict[str, float]:
    """A bias: a small model likes whitespace so much that it would use up its tokens on it."""
    tokens = range(len(tokenizer))
    return {str(token): -30.0 for token in tokens if not tokenizer.decode([token]).strip()}


def chat_all(server, bodies: list[dict]) -> list[dict]:
    """The first choice's message of each request; all are open at once."""

    async def one(session, body):
        message = {"role": "user", "content": "Where shall we go, and for how long?"}
        body = {"model": server.model, "messages": [message], "max_tokens": 200, **body}
        async with session.post(f"{server.url}/v1/chat/completions", json=body) as reply:
            answer = await reply.json()
            assert reply.status == 200, answer
            return answer["choices"][0]["message"]

    async def main():
        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(*(one(session, body) for body in bodies))

    return asyncio.run(main())


def json_request(**fields) -> dict:
    schema = {"name": "trip", "schema": SCHEMA}
    return {"response_format": {"type": "json_schema", "json_schema": schema}, **fields}


def assert_fits(text: str) -> None:
    value = json.loads(text)
    assert set(value) == {"city", "days"}
    assert value["city"] in ("Paris", "Oslo")
    assert value["days"] in (1, 2, 3)


def test_g5_json_is_enforced_across_the_end_of_thinking(server, end_of_thinking, no_whitespace):
    """Acceptance row G5. Thoughts are as long as they come; what follows them always parses."""
    rng = random.Random(0)
    bodies = [
        json_request(
            temperature=1.0,
            seed=seed,
            logit_bias={**no_whitespace, end_of_thinking: rng.choice([11.0, 14.0, 20.0])},
            chat_template_kwargs={"enable_thinking": True},
        )
        for seed in range(24)
    ]
    plain = {"temperature": 1.0, "seed": 1, "max_tokens": 20}
    messages = chat_all(server, [body for each in bodies for body in (each, plain)])[::2]
    finished = [message for message in messages if message["content"]]
    assert len(finished) > len(bodies) // 2
    for message in finished:
        assert_fits(message["content"])


def test_json_without_thinking_parses(server, no_whitespace):
    bodies = [
        json_request(
            temperature=1.0,
            seed=seed,
            logit_bias=no_whitespace,
            chat_template_kwargs={"enable_thinking": False},
        )
        for seed in range(8)
    ]
    for message in chat_all(server, bodies):
        assert_fits(message["content"] or message.get("reasoning"))


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_required_tool_is_called_with_fitting_arguments(
    server, choice, end_of_thinking, no_whitespace
):
    body = {
        "tools": [WEATHER],
        "tool_choice": choice,
        "temperature": 1.0,
        "logit_bias": {**no_whitespace, end_of_thinking: 14.0},
    }
    for message in chat_all(server, [{**body, "seed": seed} for seed in range(8)]):
        [call] = message["tool_calls"]
        assert call["function"]["name"] == "weather"
        assert_fits(call["function"]["arguments"])
