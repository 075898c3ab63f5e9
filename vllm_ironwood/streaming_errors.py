# SPDX-License-Identifier: Apache-2.0
"""Give a refused streaming request its 4xx status.

vLLM checks a request when its first token is awaited. With ``"stream": true`` the response
has then begun, so a refusal arrives as status 200 and an event that holds the error. This
ASGI middleware holds the start of an event stream back until its first event is there, and
turns a stream that begins with an error into the response it would have been without
streaming. Nothing is delayed: before the first event there is nothing to send.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_EVENT = b"data: "


class StreamingErrorsMiddleware:
    """Wraps the API server's application (``--middleware``)."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            send = _HoldUntilFirstEvent(send)
        await self._app(scope, receive, send)


class _HoldUntilFirstEvent:
    """The ``send`` of one response."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._replaced = False

    async def __call__(self, message: Message) -> None:
        if self._replaced:
            return
        if message["type"] == "http.response.start" and _is_event_stream(message):
            self._start = message
            return
        if self._start is not None:
            start, self._start = self._start, None
            error = _error_of(message.get("body", b""))
            if error is not None:
                self._replaced = True
                await self._send_error(error)
                return
            await self._send(start)
        await self._send(message)

    async def _send_error(self, error: dict[str, Any]) -> None:
        body = json.dumps({"error": error}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await self._send(
            {"type": "http.response.start", "status": error["code"], "headers": headers}
        )
        await self._send({"type": "http.response.body", "body": body})


def _is_event_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )


def _error_of(event: bytes) -> dict[str, Any] | None:
    """The error object when the event is one and carries an HTTP status, else None."""
    if not event.startswith(_EVENT + b'{"error"'):
        return None
    error = json.loads(event.removeprefix(_EVENT).split(b"\n\n", 1)[0]).get("error")
    if isinstance(error, dict) and isinstance(error.get("code"), int) and error["code"] >= 400:
        return error
    return None
