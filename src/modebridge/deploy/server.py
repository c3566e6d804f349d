"""The HTTP server around an exported file; imports LitServe, so only `serving` imports this."""

# No `from __future__ import annotations`: FastAPI and LitServe read annotations as objects.
import json
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty
from typing import Annotated, Any

import litserve
import numpy as np
from fastapi import Depends, HTTPException, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from litserve.loops import BatchedLoop
from litserve.loops.base import _SENTINEL_VALUE, _StopLoopError
from numpy.typing import NDArray
from starlette.exceptions import HTTPException as StarletteHTTPException

from modebridge.deploy.file import Deployed
from modebridge.deploy.metrics import Metrics
from modebridge.deploy.pictures import from_base64, from_bytes, from_lists
from modebridge.deploy.serving import ServeConfig
from modebridge.errors import ModebridgeError

__all__ = ["make_server"]

BATCH_HEADER = "x-batch-size"
PATH = "/predict"


def make_server(path: Path, config: ServeConfig) -> litserve.LitServer:
    """A server that is ready to run; the file is looked at first, so that a bad one is an error here.

    Args:
        path: the exported file.
        config: how to serve it.
    """
    deployed = Deployed.load(path)
    meta, image = deployed.meta, deployed.image_shape()
    server = litserve.LitServer(
        _Api(path, meta, config),
        accelerator="cpu",
        devices=1,
        timeout=config.queue_seconds,
        model_metadata=meta,
        middlewares=[(_Metered, {"metrics": (metrics := Metrics())})],
        fast_queue=False,
    )
    server.app.state.config, server.app.state.image = config, image
    server.app.add_api_route("/metrics", lambda: PlainTextResponse(metrics.text()), methods=["GET"])
    return server


async def _body(request: Request) -> tuple[str, bytes]:
    """The type and bytes of a request, never more of them than allowed."""
    limit = request.app.state.config.max_bytes
    too_large = HTTPException(413, f"Expected a request of at most {limit} bytes, but got more; send a smaller image.")
    if int(request.headers.get("content-length") or 0) > limit:
        raise too_large
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large
        parts.append(part)
    kind = request.headers.get("content-type", "")
    body = b"".join(parts)
    if kind.startswith("multipart/form-data"):
        return "image", await _file_of(Request(request.scope, _again(body)))
    return kind, body


def _again(body: bytes) -> Any:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _file_of(request: Request) -> bytes:
    """The one file of a form."""
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


# Not async: FastAPI runs it on a thread, so that a large image does not keep other requests waiting.
def _pixels(body: Annotated[tuple[str, bytes], Depends(_body)], request: Request) -> NDArray[np.float32]:
    kind, data = body
    shape: Sequence[int] = request.app.state.image
    try:
        if not kind.startswith("application/json"):
            return from_bytes(data, shape)
        try:
            given = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ModebridgeError('Expected the body to be JSON, but it is not; send {"image": ...}.') from error
        image = given.get("image") if isinstance(given, dict) else None
        return from_base64(image, shape) if isinstance(image, str) else from_lists(image, shape)
    except ModebridgeError as error:
        raise HTTPException(400, str(error)) from error


class _Api(litserve.LitAPI):  # type: ignore[misc]
    """Runs batches in a process of its own; what reaches it was read and checked before."""

    def __init__(self, path: Path, meta: dict[str, Any], config: ServeConfig) -> None:
        super().__init__(
            max_batch_size=config.batch, batch_timeout=config.timeout_ms / 1000, api_path=PATH, loop=_Loop()
        )
        self.path = path
        self.classes: list[str] = list(meta["classes"])

    def setup(self, device: str) -> None:
        """Load the file, and run it once so that the first request does not wait for it."""
        self.deployed = Deployed.load(self.path)
        self.deployed(np.zeros((1, *self.deployed.meta["image"]), dtype=np.float32))

    def decode_request(self, request: Annotated[Any, Depends(_pixels)]) -> Any:
        """The pixels as `_pixels` read them."""
        return request

    def batch(self, inputs: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Images (B, C, H, W)."""
        return np.stack(inputs)

    def predict(self, x: NDArray[np.float32]) -> list[tuple[dict[str, Any], int]]:
        """What is said of every image, and how many there were."""
        answer = self.deployed(x)
        table = np.asarray(answer.probabilities, dtype=np.float64)
        # A file without uncertainty among its outputs still has an entropy.
        entropy = -(table * np.log(np.maximum(table, 1e-30))).sum(axis=1)
        best, disagreement = table.argmax(axis=1), answer.mutual_information
        said: list[tuple[dict[str, Any], int]] = []
        for k, row in enumerate(table):
            one: dict[str, Any] = {
                "class": self.classes[best[k]],
                "index": int(best[k]),
                "probability": float(row.max()),
            }
            one |= {"probabilities": row.tolist(), "entropy": float(entropy[k]), "used": int(answer.used[k])}
            if disagreement is not None:
                one["mutual_information"] = float(disagreement[k])
            said.append((one, len(table)))
        return said

    def unbatch(self, output: list[Any]) -> list[Any]:
        """One answer an image, in the order of the images."""
        return output

    def encode_response(self, output: tuple[dict[str, Any], int]) -> Response:
        """The answer of one image as JSON."""
        said, size = output
        return JSONResponse(said, headers={BATCH_HEADER: str(size)})


class _Loop(BatchedLoop):  # type: ignore[misc]
    """Waits for a first image without turning round and round, then a moment for others.

    LitServe's own loop begins the moment before the first image is there and asks a thousand times a second.
    """

    def get_batch_requests(self, lit_api: Any, request_queue: Any, transport: Any) -> tuple[list[Any], list[Any]]:
        """Requests to run together, and those that have waited too long."""
        found: list[Any] = []
        late: list[Any] = []
        wait, end = 1.0, None
        while len(found) < lit_api.max_batch_size:
            try:
                request = request_queue.get(timeout=wait) if wait > 0 else request_queue.get_nowait()
            except Empty:
                break
            if request == _SENTINEL_VALUE:
                raise _StopLoopError
            answer_to, uid, since, pixels = request
            if time.monotonic() - since > lit_api.request_timeout:
                late.append((answer_to, uid))
            else:
                found.append((answer_to, uid, pixels))
            end = end or time.monotonic() + lit_api.batch_timeout
            # After its time is over a batch still takes what is there already.
            wait = max(end - time.monotonic(), 0.0)
        return found, late


class _Metered:
    """Counts every answer on its way out."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self.app(scope, receive, send)
            return
        begin, code, size = time.perf_counter(), 500, None

        async def counting(message: Any) -> None:
            nonlocal code, size
            if message["type"] == "http.response.start":
                code = message["status"]
                sizes = [value for name, value in message["headers"] if name == BATCH_HEADER.encode()]
                size = int(sizes[0]) if sizes else None
            await send(message)

        try:
            await self.app(scope, receive, counting)
        finally:
            self.metrics.add(code, time.perf_counter() - begin, size)
