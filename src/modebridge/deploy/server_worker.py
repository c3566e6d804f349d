"""The worker process that runs batches, and its pipes; imports LitServe, so only `server` imports this."""

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import litserve
import numpy as np
from fastapi.responses import JSONResponse
from litserve.loops import BatchedLoop
from litserve.loops.base import _StopLoopError
from litserve.utils import LitAPIStatus, LoopResponseType
from numpy.typing import NDArray

from modebridge.deploy.deployed import Deployed
from modebridge.deploy.serve import ServeConfig

__all__ = ["BATCH_HEADER", "PATH", "AnswerPipe", "Api"]

BATCH_HEADER = "x-batch-size"
PATH = "/predict"


class Api(litserve.LitAPI):  # type: ignore[misc]
    """Runs batches in a separate process; its inputs are already decoded and checked."""

    def __init__(self, path: Path, meta: dict[str, Any], config: ServeConfig) -> None:
        super().__init__(
            max_batch_size=config.batch, batch_timeout=config.timeout_ms / 1000, api_path=PATH, loop=_Loop()
        )
        self.path = path
        self.classes: list[str] = list(meta["classes"])
        self.silence = config.queue_seconds / 2
        # Time of the worker's last heartbeat, in a clock shared by all processes; 0 before the first.
        self.beat = get_context("spawn").RawValue("d", 0.0)

    def setup(self, device: str) -> None:
        """Load the file and run it once, to warm up."""
        threading.Thread(target=_end_with_parent, daemon=True).start()
        self.deployed = Deployed.load(self.path)
        self.deployed(np.zeros((1, *self.deployed.meta["image"]), dtype=np.float32))

    def health(self) -> bool:
        """Whether the worker is ready and responsive; a batch may take half the time limit of a request."""
        return time.monotonic() - float(self.beat.value) < self.silence

    def batch(self, inputs: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Stack images to (B, C, H, W)."""
        return np.stack(inputs)

    def predict(self, x: NDArray[np.float32]) -> list[tuple[dict[str, Any], int]]:
        """The result of every image, each with the batch size."""
        answer = self.deployed(x)
        table = np.asarray(answer.probabilities, dtype=np.float64)
        # Computed here, since a file may not output it.
        entropy = -(table * np.log(np.maximum(table, 1e-30))).sum(axis=1)
        best, disagreement = table.argmax(axis=1), answer.mutual_information
        answers: list[tuple[dict[str, Any], int]] = []
        for k, row in enumerate(table):
            fields: dict[str, Any] = {
                "class": self.classes[best[k]],
                "index": int(best[k]),
                "probability": float(row.max()),
            }
            fields |= {"probabilities": row.tolist(), "entropy": float(entropy[k]), "used": int(answer.used[k])}
            if disagreement is not None:
                fields["mutual_information"] = float(disagreement[k])
            answers.append((fields, len(table)))
        return answers

    def unbatch(self, output: list[Any]) -> list[Any]:
        """One result per image, in order."""
        return output

    def encode_response(self, output: tuple[dict[str, Any], int]) -> JSONResponse:
        """The result of one image as JSON."""
        fields, size = output
        return JSONResponse(fields, headers={BATCH_HEADER: str(size)})


class AnswerPipe:
    """The transport of answers to the HTTP process, with the interface that LitServe's loop expects."""

    def __init__(self, end: Connection) -> None:
        self.end = end

    def send(self, item: Any, consumer_id: int) -> None:
        """Send an answer; if the reader is gone, this process is about to end too."""
        with contextlib.suppress(BrokenPipeError):
            self.end.send(item)


class _Loop(BatchedLoop):  # type: ignore[misc]
    """Waits for a first image without polling, then briefly for others.

    LitServe's own loop starts the wait before the first image arrives and polls a thousand times per second.
    """

    def get_batch_requests(
        self, lit_api: Api, request_queue: Connection, transport: AnswerPipe
    ) -> tuple[list[Any], list[Any]]:
        """Requests to run as one batch; those that timed out have been answered already and are dropped."""
        requests: list[Any] = []
        wait, end = min(1.0, lit_api.silence / 4), None
        lit_api.beat.value = time.monotonic()
        while len(requests) < lit_api.max_batch_size and request_queue.poll(wait):
            try:
                answer_to, uid, since, pixels = request_queue.recv()
            except EOFError:
                raise _StopLoopError from None
            if time.monotonic() - since > lit_api.request_timeout:
                self.put_response(transport, answer_to, uid, None, LitAPIStatus.ERROR, LoopResponseType.REGULAR)
            else:
                requests.append((answer_to, uid, pixels))
            end = end or time.monotonic() + lit_api.batch_timeout
            # After the timeout, a batch still takes what has already arrived.
            wait = max(end - time.monotonic(), 0.0)
        return requests, []


def _end_with_parent() -> None:
    """Exit when the HTTP process ends for any reason, including kill -9."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
