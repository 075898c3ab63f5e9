# SPDX-License-Identifier: Apache-2.0
"""The server under many clients: right answers, 4xx for what is wrong, and a clean end."""

import asyncio
import json
import random
import signal

import aiohttp
import pytest

from tests.engine.engines import Reference, draw_prompts
from tests.serving.server import Server

MAX_MODEL_LEN = 512
ARGUMENTS = [
    f"--max-model-len={MAX_MODEL_LEN}",
    "--max-num-seqs=16",
    "--max-num-batched-tokens=256",
    "--no-enable-log-requests",
    '--additional-config={"forbid_recompilation": true, "cpu_cache_gib": 0.25}',
]
PIXEL = "R0lGODlhAQABAAD/ACwAAAAAAQABAAACADs="  # a GIF of one pixel


@pytest.fixture(scope="module")
def server(demo_checkpoint, tmp_path_factory):
    server = Server(demo_checkpoint, tmp_path_factory.mktemp("log") / "server.log", *ARGUMENTS)
    try:
        yield server.wait_until_ready()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def reference(demo_checkpoint) -> Reference:
    return Reference(demo_checkpoint)


async def post(session, server, path: str, body: dict) -> tuple[int, dict]:
    async with session.post(f"{server.url}{path}", json={"model": server.model, **body}) as reply:
        return reply.status, await reply.json()


def ask(server, path: str, body: dict) -> tuple[int, dict]:
    async def main():
        async with aiohttp.ClientSession() as session:
            return await post(session, server, path, body)

    return asyncio.run(main())


def greedy_completion(prompt: list[int], tokens: int) -> dict:
    return {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
    }


def test_concurrent_clients_get_the_reference_s_answers_while_others_disconnect(server, reference):
    lengths = random.Random(0)
    prompts = draw_prompts(20, reference.vocab_size, longest=300, seed=5)
    plans = [(prompt, lengths.randint(1, 48), i % 5 == 3) for i, prompt in enumerate(prompts)]

    async def client(session, prompt, tokens, leaves):
        if not leaves:
            return await post(session, server, "/v1/completions", greedy_completion(prompt, tokens))
        body = {"model": server.model, **greedy_completion(prompt, 200), "stream": True}
        async with session.post(f"{server.url}/v1/completions", json=body) as reply:
            await reply.content.readline()
        return None

    async def main():
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            return await asyncio.gather(*(client(session, *plan) for plan in plans))

    for (prompt, tokens, _), answer in zip(plans, asyncio.run(main()), strict=True):
        if answer is None:
            continue
        status, body = answer
        assert status == 200, body
        choice = body["choices"][0]
        assert len(choice["token_ids"]) == tokens
        logprobs = choice["logprobs"]["token_logprobs"]
        reference.assert_greedy(prompt, choice["token_ids"], logprobs, tolerance=1e-3)


def test_a_streamed_chat_ends_with_the_whole_answer(server):
    body = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "max_tokens": 40}
    status, whole = ask(server, "/v1/chat/completions", body)
    assert status == 200

    async def stream() -> str:
        text = ""
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{server.url}/v1/chat/completions",
                json={"model": server.model, **body, "stream": True},
            ) as reply,
        ):
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    delta = json.loads(line[6:])["choices"][0]["delta"]
                    text += delta.get("content") or ""
        return text

    assert asyncio.run(stream()) == whole["choices"][0]["message"]["content"] != ""


def test_a_stop_string_ends_the_answer_before_it(server, reference):
    [prompt] = draw_prompts(1, reference.vocab_size, longest=40, seed=3)
    _, whole = ask(server, "/v1/completions", greedy_completion(prompt, 40))
    text = whole["choices"][0]["text"]
    stop = text[len(text) // 2 :][:4]
    status, cut = ask(server, "/v1/completions", {**greedy_completion(prompt, 40), "stop": [stop]})
    assert status == 200
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["choices"][0]["text"] == text[: text.index(stop)]


IMAGE_MESSAGE = {
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {
                    "type": "image_url",
                    "image_url": {"url": f"data:image/gif;base64,{PIXEL}"},
                },
            ],
        }
    ]
}
BAD_REQUESTS = {
    "prompt longer than the context": (
        "/v1/completions",
        {"prompt": [1] * (MAX_MODEL_LEN + 1), "max_tokens": 1},
        "512",
    ),
    "unsupported field": ("/v1/completions", {"prompt": [1], "vllm_xargs": {"x": 1}}, "extra_args"),
    "too many logprobs of a prompt": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "prompt_logprobs": 21},
        "prompt_logprobs",
    ),
    "image": ("/v1/chat/completions", IMAGE_MESSAGE, ""),
    "temperature out of range": (
        "/v1/completions",
        {"prompt": [1], "temperature": -1},
        "temperature",
    ),
    "token beyond the vocabulary": ("/v1/completions", {"prompt": [10**7]}, ""),
    "empty prompt": ("/v1/completions", {"prompt": []}, ""),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_bad_request_is_refused_with_a_reason_and_the_others_go_on(server, reference, case):
    path, body, named = BAD_REQUESTS[case]
    [prompt] = draw_prompts(1, reference.vocab_size, longest=50, seed=len(case))

    async def main():
        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(
                post(session, server, "/v1/completions", greedy_completion(prompt, 30)),
                post(session, server, path, body),
            )

    (good_status, good), (bad_status, bad) = asyncio.run(main())
    assert 400 <= bad_status < 500, bad
    assert named in str(bad["error"]["message"])
    assert good_status == 200
    choice = good["choices"][0]
    reference.assert_greedy(
        prompt, choice["token_ids"], choice["logprobs"]["token_logprobs"], tolerance=1e-3
    )


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_the_server_stops_within_seconds_without_a_traceback(demo_checkpoint, tmp_path, how):
    server = Server(demo_checkpoint, tmp_path / "log", *ARGUMENTS)
    try:
        server.wait_until_ready()
        assert ask(server, "/v1/completions", greedy_completion([1, 2, 3], 5))[0] == 200
        assert server.stop(how) < 15
        assert server.wait_until_gone(seconds=10)
        assert "Traceback" not in server.log
    finally:
        server.kill()
