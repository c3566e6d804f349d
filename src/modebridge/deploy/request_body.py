"""Read the body of a request within size limits; only `server` imports this."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import HTTPException, Request
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from modebridge.deploy.http_connections import LATE

__all__ = ["ByteBudget", "body_of"]

GONE = 499
"""The client closed the connection: a nonstandard status, as in nginx; only metrics see it."""


class ByteBudget:
    """Limits the bytes that all requests hold together.

    >>> budget = ByteBudget(10)
    >>> with budget.share() as take:
    ...     take(10)
    >>> budget.held
    0
    """

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """A function that takes bytes for one request; they are released at the end."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            taken += size
            self.held += size
            if self.held > self.most:
                raise HTTPException(
                    503, f"Expected at most {self.most} bytes in all requests, but got more; try again later."
                )

        try:
            yield take
        finally:
            self.held -= taken


async def body_of(request: Request, limit: int, take: Callable[[int], None]) -> tuple[str, bytes]:
    """The content type and body of a request; for a form, the contents of its only file.

    Args:
        request: the request to read.
        limit: maximum size in bytes; larger requests are refused before they are fully read.
        take: counts the bytes against the budget of all requests.
    """
    too_large = HTTPException(413, f"Expected a request of at most {limit} bytes, but got more; send a smaller image.")
    if int(request.headers.get("content-length") or 0) > limit:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise too_large
            take(len(part))
            parts.append(part)
    except ClientDisconnect:
        if request.scope.get(LATE):
            raise HTTPException(408, "The request did not arrive in time.") from None
        raise HTTPException(GONE, "The client closed the connection before its request was complete.") from None
    kind = request.headers.get("content-type", "")
    body = b"".join(parts)
    if kind.startswith("multipart/form-data"):
        return "image", await _file_of(Request(request.scope, _replayed(body)))
    return kind, body


def _replayed(body: bytes) -> Any:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _file_of(request: Request) -> bytes:
    """The contents of the only file of a form."""
    try:
        form = await request.form()
    except StarletteHTTPException as error:
        raise HTTPException(
            400, f"Expected a form with one image file, but got '{str(error.detail).rstrip('.')}'; send PNG or JPEG."
        ) from error
    try:
        files = [value for value in form.values() if not isinstance(value, str)]
        if len(files) != 1:
            raise HTTPException(400, f"Expected a form with one image file, but got {len(files)}; send one.")
        return await files[0].read()
    finally:
        await form.close()
