"""Serve an exported file over HTTP: one process, small batches, limits. Needs the `serve` extra: Starlette, uvicorn."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import socket
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from modebridge.deploy.deployed import DeployedEnsemble
from modebridge.deploy.inputs import (
    MAX_MEGAPIXELS,
    Array,
    TooManyPixelsError,
    from_bytes,
    from_lists,
    from_tokens,
    pixel_doubts,
    specs_in,
)
from modebridge.errors import ModebridgeError, quoting

DECODERS = 4
"""Number of images decoded at a time; the largest allowed image takes about 200 MB."""


@dataclass(frozen=True)
class ServeConfig:
    """Settings of the server.

    Args:
        host: address to bind: "127.0.0.1" for this machine only, "0.0.0.0" or "::" for all interfaces.
        port: port to listen on.
        batch: maximum batch size.
        wait_ms: how long the first image of a batch waits for others, in milliseconds.
        max_mb: maximum request size, in MB (413).
        max_megapixels: maximum image size; larger images are refused before they are decoded (413).
        max_requests: maximum number of requests at a time (429).
        read_seconds: maximum time for a request to arrive completely (408).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    batch: int = 32
    wait_ms: float = 2.0
    max_mb: float = 10.0
    max_megapixels: float = MAX_MEGAPIXELS
    max_requests: int = 256
    read_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("batch", "wait_ms", "max_mb", "max_megapixels", "max_requests", "read_seconds"):
            if not 0 <= (value := getattr(self, name)) < float("inf"):
                raise ModebridgeError(f"Expected {name} to be a finite number from 0, but got {value}; choose a limit.")


def serve(path: Path | str, config: ServeConfig | None = None, *, ready: Callable[[], None] = lambda: None) -> None:
    """Serve a file until SIGINT (Ctrl-C) or SIGTERM, and then answer the requests that have arrived.

    `POST /predict` takes one image: an image file as the body or in a form, or JSON: nested lists (C, H, W) in [0, 1],
    or {"image": such lists, or base64 of an image file}. A file that takes tokens gets JSON: one list of integers for
    each of its inputs, by name. `GET /health` and `GET /info` (the metadata) exist too.
    `ready` is called when the file is loaded and the port is open.
    """
    config = config or ServeConfig()
    file = DeployedEnsemble.load(path)
    for doubt in pixel_doubts(file.meta["pixels"]):
        warnings.warn(doubt, stacklevel=2)
    app = application(file, config)
    settings = uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=30)
    with socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with quoting(
            f"to listen on port {config.port} of {config.host}", "choose another with --port, or check --host", OSError
        ):
            listener.bind((config.host, config.port))
            listener.listen(2048)
        ready()
        # uvicorn stops gently on both signals, and then raises them again for the handlers from before.
        before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            uvicorn.Server(settings).run(sockets=[listener])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def application(file: DeployedEnsemble, config: ServeConfig | None = None) -> Starlette:
    """The server as an application for any ASGI server."""
    server = _Server(file, config or ServeConfig())

    async def refused(request: Request, error: Any) -> Response:
        detail = ROUTES if error.status_code in (404, 405) else error.detail
        return JSONResponse({"detail": detail}, error.status_code)

    routes = [
        Route("/predict", server.predict, methods=["POST"]),
        Route("/health", lambda request: PlainTextResponse("ok")),
        Route("/info", lambda request: JSONResponse({"model": file.meta})),
    ]
    return Starlette(routes=routes, lifespan=server.running, exception_handlers={HTTPException: refused})


ROUTES = "Expected POST /predict with an image, or GET /health or /info."


class _Server:
    """Decodes images in threads, collects them for a few milliseconds, and runs them together in another thread."""

    def __init__(self, file: DeployedEnsemble, config: ServeConfig) -> None:
        file.check_whole()
        self.file, self.config, self.requests = file, config, 0
        self.specs = specs_in(file.meta)
        tokens = all(spec.type != "float32" for spec in self.specs.values())
        self.shape = None if tokens else file.image_shape()
        self.queue: asyncio.Queue[tuple[dict[str, Array], asyncio.Future[Any]]] = asyncio.Queue()
        self.decoders, self.runner = ThreadPoolExecutor(DECODERS), ThreadPoolExecutor(1)
        first = {name: np.ones((1, *np.abs(spec.shape)), spec.type) for name, spec in self.specs.items()}
        with suppress(ModebridgeError):  # the first call is slow
            file(first)

    @asynccontextmanager
    async def running(self, app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self.run_batches())
        yield
        task.cancel()

    async def predict(self, request: Request) -> Response:
        if self.requests >= (most := self.config.max_requests):
            raise HTTPException(429, f"Expected at most {most} requests at a time, but got more; try again later.")
        self.requests += 1
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.config.read_seconds):
                data, kind = await self.body_of(request)
            row = await loop.run_in_executor(self.decoders, self.decode, data, kind)
            future = loop.create_future()
            self.queue.put_nowait((row, future))
            fields, size = await future
            return JSONResponse(fields, headers={"x-batch-size": str(size)})
        except (TimeoutError, ClientDisconnect):
            raise HTTPException(408, "Expected a whole request in time, but got a part; send it again.") from None
        except ModebridgeError as error:
            raise HTTPException(413 if isinstance(error, TooManyPixelsError) else 400, str(error)) from error
        finally:
            self.requests -= 1

    async def body_of(self, request: Request) -> tuple[bytes, str]:
        """The body, or the only file of a form, and its type; a body that is too large is not read to its end."""
        limit, data = int(self.config.max_mb * 1e6), bytearray()
        async for part in request.stream():
            data += part
            if len(data) > limit:
                raise HTTPException(413, f"Expected at most {limit} bytes, but got more; send a smaller image.")
        kind = request.headers.get("content-type", "")
        if not kind.startswith("multipart/"):
            return bytes(data), kind

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": bytes(data), "more_body": False}

        async with Request(request.scope, receive).form(max_fields=10) as form:
            files = [value for value in form.values() if not isinstance(value, str)]
            if len(files) != 1:
                raise ModebridgeError(f"Expected a form with one image file, but got {len(files)}; send one.")
            return await files[0].read(), "image"

    def decode(self, data: bytes, kind: str) -> dict[str, Array]:
        """The inputs of one request by name, as a batch of one."""
        if self.shape is None:
            return from_tokens(_json(data), self.specs)
        return {name: self.pixels(data, kind, self.shape)[None] for name in self.specs}

    def pixels(self, data: bytes, kind: str, shape: Sequence[int]) -> NDArray[np.float32]:
        if kind.startswith("application/json"):
            given = _json(data)
            if isinstance(given, dict) and "image" not in given:
                got = ", ".join(map(repr, given)) or "nothing"
                raise ModebridgeError(f"Expected JSON with the key 'image', but got {got[:100]}; rename it.")
            image = given["image"] if isinstance(given, dict) else given
            if not isinstance(image, str):
                return from_lists(image, shape)
            try:
                data = base64.b64decode(image, validate=True)
            except ValueError as error:
                raise ModebridgeError("Expected image to be base64, but it is not; encode a file.") from error
        return from_bytes(data, shape, max_megapixels=self.config.max_megapixels)

    async def run_batches(self) -> None:
        while True:
            batch = [await self.queue.get()]
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.wait_ms / 1000):
                    while len(batch) < self.config.batch:
                        batch.append(await self.queue.get())
            # Only sequences of one length can run together.
            for _, group in groupby(sorted(batch, key=_shapes), _shapes):
                await self.run(list(group))

    async def run(self, batch: list[tuple[dict[str, Array], asyncio.Future[Any]]]) -> None:
        inputs = {name: np.concatenate([row[name] for row, _ in batch]) for name in self.specs}
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self.runner, self.file.records, inputs)
        except Exception as error:
            if len(batch) > 1:  # one bad request is no reason to refuse the others
                for one in batch:
                    await self.run([one])
            elif not batch[0][1].done():  # its client may be gone
                batch[0][1].set_exception(error)
            return
        for (_, future), fields in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result((fields, len(batch)))


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModebridgeError(
            'Expected the body to be JSON, but it is not; send {"image": ...}, or for texts {"input_ids": [...], ...}.'
        ) from error


def _shapes(item: tuple[dict[str, Array], Any]) -> list[tuple[int, ...]]:
    return [table.shape for table in item[0].values()]
