# SPDX-License-Identifier: Apache-2.0
"""A stream that begins with an error becomes a response with that error's status."""

import asyncio
import json

import pytest

from vllm_ironwood.request_fields import UnsupportedRequestError
from vllm_ironwood.streaming_errors import StreamingErrorsMiddleware

ERROR = {"message": "extra_args is not supported yet", "type": "BadRequestError", "code": 400}
ERROR_EVENT = b"data: " + json.dumps({"error": ERROR}).encode() + b"\n\n"
TOKEN_EVENT = b'data: {"choices": [{"text": "error"}]}\n\n'
DONE = b"data: [DONE]\n\n"
ANTHROPIC = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
ANTHROPIC_EVENT = b"event: error\ndata: " + json.dumps(ANTHROPIC).encode() + b"\n\n"
PREAMBLE = [b"event: response.created\ndata: {}\n\n", b"event: response.in_progress\ndata: {}\n\n"]
STREAM = b"text/event-stream; charset=utf-8"


def responses(
    bodies: list[bytes],
    *,
    content_type: bytes = STREAM,
    scope: str = "http",
    fails: Exception | None = None,
) -> list[dict]:
    """What a client is sent when the application answers with these chunks, then may fail."""
    sent: list[dict] = []

    async def application(scope, receive, send):
        headers = [(b"content-type", content_type)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number, body in enumerate(bodies, start=1):
            more = number < len(bodies) or fails is not None
            await send({"type": "http.response.body", "body": body, "more_body": more})
        if fails is not None:
            raise fails

    async def send(message):
        sent.append(message)

    middleware = StreamingErrorsMiddleware(application)
    asyncio.run(middleware({"type": scope}, None, send))
    return sent


def wrapped(error: Exception) -> Exception:
    """As Starlette raises what was raised after the response had started."""
    late = RuntimeError("Caught handled exception, but response already started.")
    late.__cause__ = error
    return late


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


def test_stream_of_the_anthropic_api_is_its_error_too():
    start, body = responses([ANTHROPIC_EVENT])
    assert start["status"] == 400
    assert json.loads(body["body"]) == ANTHROPIC


def test_refusal_after_the_preamble_of_the_responses_api_is_that_error():
    refusal = UnsupportedRequestError("top_k is not supported", parameter="top_k")
    start, body = responses(PREAMBLE, fails=wrapped(refusal))
    assert start["status"] == 400
    error = json.loads(body["body"])["error"]
    assert (error["code"], error["param"]) == (400, "top_k")
    assert "top_k is not supported" in error["message"]


def test_preamble_goes_out_before_the_first_output():
    bodies = [*PREAMBLE, TOKEN_EVENT, DONE]
    assert [message["body"] for message in responses(bodies)[1:]] == bodies


@pytest.mark.parametrize(
    ("bodies", "error"),
    [(PREAMBLE, RuntimeError("a bug")), ([TOKEN_EVENT], UnsupportedRequestError("late"))],
    ids=["a bug", "after a token"],
)
def test_other_failures_are_not_touched(bodies, error):
    with pytest.raises(type(error)):
        responses(bodies, fails=error)


@pytest.mark.parametrize(
    "bodies",
    [
        [TOKEN_EVENT, DONE],
        [TOKEN_EVENT, ERROR_EVENT, DONE],
        [b": keep-alive\n\n", TOKEN_EVENT],
        [b'data: {"error": null}\n\n'],
        [b'data: {"error": {"message": "no code"}}\n\n'],
        [b'data: {"type": "error", "error": {"type": "invalid_request_error"}}\n\n'],
        [b""],
    ],
    ids=["tokens", "error later", "comment first", "no error", "no status", "unnamed", "empty"],
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
