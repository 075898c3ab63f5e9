# SPDX-License-Identifier: Apache-2.0
"""Give a refused streaming request its 4xx status.

vLLM checks a request when its first token is awaited. With ``"stream": true`` the response
has then begun, so a refusal arrives as an error event in a stream of status 200, or breaks the
stream. This ASGI middleware holds the start of an event stream back until its first output is
there, and turns a stream that fails before it into the response it would have been without
streaming. No token is delayed: before the first one there is only the preamble.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

# What the Responses API sends before it asks for the first token.
_PREAMBLE = (b"event: response.created", b"event: response.in_progress")


class StreamingErrorsMiddleware:
    """Wraps the API server's application (``--middleware``)."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = _HeldResponse(send)
        try:
            await self._app(scope, receive, response.send)
        except Exception as error:
            refusal = _refusal_behind(error)
            if refusal is None or not response.is_held:
                raise
            await response.replace_by({"error": refusal})


class _HeldResponse:
    """One response: an event stream is held until it shows that it is no error."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: list[Message] = []
        self._replaced = False

    @property
    def is_held(self) -> bool:
        return bool(self._held)

    async def send(self, message: Message) -> None:
        if self._replaced:
            return
        if message["type"] == "http.response.start" and _is_event_stream(message):
            self._held.append(message)
            return
        if self._held:
            event = message.get("body", b"")
            if event.startswith(_PREAMBLE):
                self._held.append(message)
                return
            body = _error_body(event)
            if body is not None:
                await self.replace_by(body)
                return
            held, self._held = self._held, []
            for earlier in held:
                await self._send(earlier)
        await self._send(message)

    async def replace_by(self, body: dict[str, Any]) -> None:
        """Answer with an error object in place of the stream."""
        self._held, self._replaced = [], True
        content = json.dumps(body).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
        ]
        status = body["error"].get("code", 400)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": content})


def _is_event_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )


def _error_body(event: bytes) -> dict[str, Any] | None:
    """The error object that an event carries, else None.

    OpenAI's events are ``data: {"error": {..., "code": 400}}``. Anthropic's say ``event:
    error`` first, and name the kind of error where the others have a status.
    """
    is_named = event.startswith(b"event: error\n")
    data = event.removeprefix(b"event: error\n").split(b"\n\n", 1)[0]
    if not data.startswith(b'data: {"') or not (is_named or data.startswith(b'data: {"error"')):
        return None
    body = json.loads(data.removeprefix(b"data: "))
    error = body.get("error")
    if not isinstance(error, dict):
        return None
    is_refusal = error.get("type") == "invalid_request_error" or error.get("code", 0) >= 400
    return body if is_refusal else None


def _refusal_behind(error: BaseException) -> dict[str, Any] | None:
    """The error object of a refused request that led to ``error``, else None."""
    from vllm_ironwood.request_fields import UnsupportedRequestError

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, UnsupportedRequestError):
        cause = cause.__cause__
    if cause is None:
        return None
    return {
        "message": str(cause),
        "type": "BadRequestError",
        "param": cause.parameter,
        "code": 400,
    }
