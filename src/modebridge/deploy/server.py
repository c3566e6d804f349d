"""The HTTP server around an exported file; imports LitServe, so only `serve` imports this."""

# No `from __future__ import annotations`: FastAPI and LitServe need annotations as objects.
import asyncio
import json
import queue
import signal
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from multiprocessing import Pipe, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import litserve
import numpy as np
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse
from litserve.utils import LitAPIStatus, WorkerSetupStatus
from numpy.typing import NDArray

from modebridge.deploy.deployed import Deployed
from modebridge.deploy.http_connections import Connection, HttpServer
from modebridge.deploy.image_decoding import TooManyPixelsError, from_base64, from_bytes, from_lists
from modebridge.deploy.prometheus import Metrics
from modebridge.deploy.request_body import ByteBudget, body_of
from modebridge.deploy.serve import ServeConfig, Stop
from modebridge.deploy.server_worker import BATCH_HEADER, PATH, AnswerPipe, Api
from modebridge.errors import ModebridgeError

__all__ = ["Server"]

MOST = 1000
"""Maximum number of concurrent requests; each holds memory, also while the worker hangs."""
DECODERS = 4
"""Number of images decoded at a time; the largest allowed image takes about 200 MB."""
MOST_BYTES = 500_000_000
"""Maximum size of all requests together, before their images are decoded."""


class Server(litserve.LitServer):  # type: ignore[misc]
    """Two processes: this one handles HTTP, a LitServe worker runs batches. Neither outlives the other.

    LitServe's own `run` moves HTTP and the queues to separate processes and does not notice when these die.

    Args:
        path: the exported file; loaded first, so that a bad file is an error here.
        config: settings of the server.
    """

    def __init__(self, path: Path, config: ServeConfig) -> None:
        deployed = Deployed.load(path)
        self.config, self.image = config, deployed.image_shape()
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._busy, self._budget = 0, ByteBudget(max(MOST_BYTES, config.max_bytes))
        self._died = False
        super().__init__(
            Api(path, deployed.meta, config),
            accelerator="cpu",
            devices=1,
            timeout=config.queue_seconds,
            model_metadata=deployed.meta,
            middlewares=[(_Metered, {"metrics": (metrics := Metrics())})],
        )
        self.app.add_api_route("/metrics", lambda: PlainTextResponse(metrics.text()), methods=["GET"])

    def serve(self, listener: socket.socket, stop: Stop) -> None:
        """Serve requests until stopped; raises an error if the worker ends first.

        Args:
            listener: a listening socket.
            stop: signal handler that stops the server.
        """
        protocol = type("LimitedConnection", (Connection,), {"seconds": self.config.read_seconds})
        # Every request that has arrived gets a response within `queue_seconds`.
        patience = int(self.config.queue_seconds) + 5
        self._http = HttpServer(
            uvicorn.Config(self.app, http=protocol, ws="none", log_level="warning", timeout_graceful_shutdown=patience)
        )
        stop.gently = self._end
        worker = self._start_worker()
        stop.at_once = worker.kill
        try:
            self._http.run([listener])
        finally:
            worker.join(1.0 if self._died else 0.0)
            code = worker.exitcode
            worker.kill()
            worker.join()
        if self._died:
            how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
            raise ModebridgeError(
                f"Expected the worker process to run as long as the server, but it ended {how}; start the server again."
            )

    def _start_worker(self) -> BaseProcess:
        requests, self._requests = Pipe(duplex=False)
        self._answers, answers = Pipe(duplex=False)
        self.litapi_request_queues[PATH], self._transport, self.workers_setup_status = requests, AnswerPipe(answers), {}
        # Ctrl-C reaches all processes of a terminal, and systemd's SIGTERM all of a service: the worker ignores both.
        # (The resource tracker of `multiprocessing` unblocks both when it starts, so it is started before.)
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            (worker,) = self.launch_inference_worker(self.lit_api)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # Close our copies, so that reading ends when the worker does.
        requests.close()
        answers.close()
        # `Api.health` reports whether it is really ready.
        self.workers_setup_status = {PATH: WorkerSetupStatus.READY}
        return worker  # type: ignore[no-any-return]

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Run the other threads: one sends requests to the worker, one receives its answers, some decode images."""
        loop = asyncio.get_running_loop()
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def send() -> None:
            while True:
                try:
                    self._requests.send(self._outbox.get())
                except OSError:
                    return

        def receive() -> None:
            while True:
                try:
                    item = self._answers.recv()
                except (EOFError, OSError):
                    # The end of the worker matters only while the server runs.
                    with suppress(RuntimeError):
                        loop.call_soon_threadsafe(self._worker_ended)
                    return
                loop.call_soon_threadsafe(self._answered, *item)

        for target in (send, receive):
            threading.Thread(target=target, daemon=True).start()
        with ThreadPoolExecutor(DECODERS) as self._decoders:
            yield

    def _answered(self, uid: str, answer: tuple[Any, ...]) -> None:
        self._busy -= 1
        future = self._waiting.get(uid)
        if future is not None and not future.done():
            future.set_result(answer[:2])

    def _worker_ended(self) -> None:
        self._died = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_no_worker())
        self._end()

    def _end(self) -> None:
        self._http.should_exit = True

    def _register_api_endpoints(self, lit_api: Api, request_type: Any, response_type: Any) -> None:
        # Replaces LitServe's endpoint, which waits for an answer without a limit.
        auth = Depends(self.setup_auth(lit_api))
        self.app.add_api_route(PATH, self._predict, methods=["POST"], dependencies=[auth])

    async def _predict(self, request: Request) -> Response:
        if self._busy >= MOST:
            raise HTTPException(503, f"Expected at most {MOST} concurrent requests, but got more; try again later.")
        self._busy += 1
        uid, sent = str(uuid.uuid4()), False
        try:
            loop = asyncio.get_running_loop()
            with self._budget.share() as take:
                kind, data = await body_of(request, self.config.max_bytes, take)
                end = loop.time() + self.config.queue_seconds
                async with asyncio.timeout_at(end):
                    pixels = await loop.run_in_executor(self._decoders, self._pixels, kind, data)
            del data
            async with asyncio.timeout_at(end):
                if self._died:
                    raise _no_worker()
                future = self._waiting[uid] = loop.create_future()
                self._outbox.put((0, uid, time.monotonic(), pixels))
                sent = True
                answer, status = await future
        except TimeoutError:
            limit = self.config.queue_seconds
            raise HTTPException(504, f"Expected a result within {limit:g} s, but got none; try again later.") from None
        finally:
            self._waiting.pop(uid, None)
            if not sent:
                # Otherwise counted down when the worker is done with it, which may be long after the response.
                self._busy -= 1
        if status == LitAPIStatus.ERROR:
            raise HTTPException(500, "Internal server error")
        return answer  # type: ignore[no-any-return]

    def _pixels(self, kind: str, data: bytes) -> NDArray[np.float32]:
        shape: Sequence[int] = self.image
        most = self.config.max_megapixels
        try:
            if not kind.startswith("application/json"):
                return from_bytes(data, shape, max_megapixels=most)
            try:
                given = json.loads(data)
            except (ValueError, RecursionError) as error:
                raise ModebridgeError('Expected the body to be JSON, but it is not; send {"image": ...}.') from error
            image = given.get("image") if isinstance(given, dict) else None
            if isinstance(image, str):
                return from_base64(image, shape, max_megapixels=most)
            return from_lists(image, shape)
        except ModebridgeError as error:
            raise HTTPException(413 if isinstance(error, TooManyPixelsError) else 400, str(error)) from error


def _no_worker() -> HTTPException:
    return HTTPException(503, "Expected a worker process to run the image, but it has ended; restart the server.")


class _Metered:
    """Middleware that counts every response."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self.app(scope, receive, send)
            return
        start, code, size = time.perf_counter(), 500, None

        async def counting(message: Any) -> None:
            nonlocal code, size
            if message["type"] == "http.response.start":
                code = message["status"]
                sizes = [value for name, value in message["headers"] if name == BATCH_HEADER.encode()]
                size = int(sizes[0]) if sizes else None
            await send(message)

        self.metrics.in_progress += 1
        try:
            await self.app(scope, receive, counting)
        finally:
            self.metrics.in_progress -= 1
            self.metrics.add(code, time.perf_counter() - start, size)
