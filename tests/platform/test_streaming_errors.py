# SPDX-License-Identifier: Apache-2.0
"""A stream that begins with an error becomes a response with that error's status."""

import asyncio
import json

import pytest

from vllm_ironwood.streaming_errors import StreamingErrorsMiddleware

ERROR = {"message": "min_p is not supported yet", "type": "BadRequestError", "code": 400}
ERROR_EVENT = b"data: " + json.dumps({"error": ERROR}).encode() + b"\n\n"
TOKEN_EVENT = b'data: {"choices": [{"text": "error"}]}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = b"text/event-stream; charset=utf-8"


def responses(bodies: list[bytes], *, content_type: bytes = STREAM, scope: str = "http"):
    """What a client is sent when the application answers with these body chunks."""
    sent: list[dict] = []

    async def application(scope, receive, send):
        headers = [(b"content-type", content_type)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number, body in enumerate(bodies, start=1):
            more = number < len(bodies)
            await send({"type": "http.response.body", "body": body, "more_body": more})

    async def send(message):
        sent.append(message)

    middleware = StreamingErrorsMiddleware(application)
    asyncio.run(middleware({"type": scope}, None, send))
    return sent


@pytest.mark.parametrize(
    "bodies", [[ERROR_EVENT, DONE, b""], [ERROR_EVENT + DONE]], ids=["two events", "one chunk"]
)
def test_stream_that_begins_with_an_error_is_that_error(bodies):
    start, body = responses(bodies)
    assert start["status"] == 400
    assert dict(start["headers"])[b"content-type"] == b"application/json"
    assert dict(start["headers"])[b"content-length"] == str(len(body["body"])).encode()
    assert json.loads(body["body"]) == {"error": ERROR}
    assert not body.get("more_body")


@pytest.mark.parametrize(
    "bodies",
    [
        [TOKEN_EVENT, DONE],
        [TOKEN_EVENT, ERROR_EVENT, DONE],
        [b": keep-alive\n\n", TOKEN_EVENT],
        [b'data: {"error": null}\n\n'],
        [b'data: {"error": {"message": "no code"}}\n\n'],
        [b""],
    ],
    ids=["tokens", "error later", "comment first", "no error", "no status", "empty"],
)
def test_other_streams_pass_unchanged(bodies):
    sent = responses(bodies)
    assert sent[0]["status"] == 200
    assert [message["body"] for message in sent[1:]] == bodies


def test_first_event_is_passed_on_at_once():
    """The start is held back for the first event only, not for the end of the stream."""
    order = []

    async def application(scope, receive, send):
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"Content-Type", STREAM)]}
        )
        order.append("before the first event")
        await send({"type": "http.response.body", "body": TOKEN_EVENT, "more_body": True})
        order.append("after the first event")

    async def send(message):
        order.append(message["type"])

    asyncio.run(StreamingErrorsMiddleware(application)({"type": "http"}, None, send))
    assert order == [
        "before the first event",
        "http.response.start",
        "http.response.body",
        "after the first event",
    ]


def test_responses_that_are_no_streams_pass_unchanged():
    sent = responses([ERROR_EVENT], content_type=b"application/json")
    assert sent[0]["status"] == 200
    assert sent[1]["body"] == ERROR_EVENT


def test_other_protocols_pass_unchanged():
    assert len(responses([ERROR_EVENT, DONE], scope="websocket")) == 3
