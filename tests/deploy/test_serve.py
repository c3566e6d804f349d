"""The server: answers of images in every form, limits, batches; in process, and one real process that is stopped."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from typer.testing import CliRunner

from modebridge.cli.app import app as program
from modebridge.errors import ModebridgeError

pytest.importorskip("starlette", reason="the extra `serve`")
from starlette.testclient import TestClient

from modebridge.deploy import DeployedEnsemble
from modebridge.deploy.serve import ServeConfig, application, serve
from tests.deploy.scenes import png

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
LISTS = (PIXELS / 255.0).astype(np.float32)[None].tolist()


@pytest.fixture(scope="module")
def file(little_onnx):
    return DeployedEnsemble.load(little_onnx)


@pytest.fixture(scope="module")
def client(file):
    with TestClient(application(file, ServeConfig(max_mb=0.1, max_megapixels=0.01))) as client:
        yield client


LARGE = png(np.zeros((101, 100), np.uint8))


@pytest.mark.parametrize(
    "sent",
    [
        {"content": png(PIXELS)},
        {"content": png(PIXELS, "RGB"), "headers": {"content-type": "image/png"}},
        {"files": {"image": ("seven.png", png(PIXELS))}, "data": {"other": "text"}},
        {"json": {"image": base64.b64encode(png(PIXELS)).decode()}},
        {"json": {"image": LISTS}},
        {"json": LISTS},
    ],
    ids=["file", "color", "form", "base64", "lists", "array"],
)
def test_an_image_in_every_form(client, file, sent):
    answer = client.post("/predict", **sent)
    assert answer.status_code == 200, answer.text
    told, wanted = answer.json(), file(np.array([LISTS], np.float32))
    np.testing.assert_allclose(told["probabilities"], wanted.probabilities[0], atol=1e-6)
    top = int(wanted.probabilities[0].argmax())
    assert (told["class"], told["index"], told["used"]) == (file.meta["classes"][top], top, 2)
    assert told["probability"] == max(told["probabilities"])
    for name in ("entropy", "mutual_information"):
        assert told[name] == pytest.approx(float(getattr(wanted, name)[0]), abs=1e-6)


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        ({"content": b""}, 400, "Expected an image file, but got 0 bytes"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "Expected the body to be JSON"),
        ({"json": {"image": "???"}}, 400, "to be base64"),
        ({"json": {"images": 1, "id": 2}}, 400, "with the key 'image', but got 'images', 'id'; rename it"),
        ({"json": {"image": 1}}, 400, "nested lists of shape (1, 8, 8)"),
        ({"json": [[[2.0] * 8] * 8]}, 400, "some are out of range"),
        ({"data": {"image": "text"}, "files": {}}, 400, "Expected an image file"),
        ({"files": [("a", png(PIXELS)), ("b", png(PIXELS))]}, 400, "a form with one image file, but got 2"),
        ({"content": b"--x", "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
        ({"content": b"x" * 100_001}, 413, "at most 100000 bytes"),
        ({"content": (b"x" * 60_000 for _ in range(2))}, 413, "at most 100000 bytes"),
        ({"content": LARGE}, 413, "at most 0.01 megapixels, but got 100 x 101 pixels"),
        ({"json": {"image": base64.b64encode(LARGE).decode()}}, 413, "at most 0.01 megapixels"),
    ],
)
def test_bad_requests_are_one_sentence(client, sent, status, words):
    answer = client.post("/predict", **sent)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["detail"]
    assert client.post("/predict", content=png(PIXELS)).status_code == 200, "and harm nobody else"


def test_health_info_and_other_paths(client, file):
    assert (client.get("/health").status_code, client.get("/health").text) == (200, "ok")
    assert client.get("/info").json()["model"] == file.meta
    assert client.get("/predict").status_code == 405
    assert client.get("/nothing").json() == {"detail": "Expected POST /predict with an image, or GET /health or /info."}


@pytest.fixture
def slow(little_onnx):
    """A file that answers when it is told to, and remembers its batches."""
    file = DeployedEnsemble.load(little_onnx)
    answer, file.go, file.batches, file.fails = file._run, threading.Event(), [], False
    file.go.set()

    def run(feed):
        file.go.wait(30)
        file.batches.append(len(feed["images"]))
        if file.fails:
            raise MemoryError("buy some")
        return answer(feed)

    file._run = run
    return file


def test_requests_run_together_and_get_their_own_answers(file, slow):
    pictures = [np.random.default_rng(k).integers(0, 256, (8, 8), dtype=np.uint8) for k in range(12)]
    with TestClient(application(slow, ServeConfig(batch=4, wait_ms=50))) as client, ThreadPoolExecutor(12) as clients:
        answers = list(clients.map(lambda pixels: client.post("/predict", content=png(pixels)), pictures))
    wanted = file(np.stack([picture[None] for picture in pictures]).astype(np.float32) / 255).probabilities
    for answer, row in zip(answers, wanted, strict=True):
        np.testing.assert_allclose(answer.json()["probabilities"], row, atol=1e-6)
    assert sum(slow.batches[1:]) == 12, "after the first, to warm up"
    assert 1 < max(slow.batches) <= 4
    assert {int(answer.headers["x-batch-size"]) for answer in answers} == set(slow.batches[1:])


def test_more_requests_than_allowed_and_a_file_that_fails(slow):
    app = application(slow, ServeConfig(max_requests=2, batch=1))
    with TestClient(app) as client, ThreadPoolExecutor(2) as clients:
        slow.go.clear()

        def patient():
            while (answer := client.post("/predict", content=png(PIXELS))).status_code == 429:
                time.sleep(0.01)  # what looks whether both are waiting is a request too
            return answer

        waiting = [clients.submit(patient) for _ in range(2)]
        while (refused := client.post("/predict", content=b"")).status_code != 429:
            time.sleep(0.01)
        assert "at most 2 requests at a time" in refused.json()["detail"]
        assert client.get("/health").status_code == 200
        slow.go.set()
        assert [one.result().status_code for one in waiting] == [200, 200]
        slow.fails = True
        assert "buy some" in client.post("/predict", content=png(PIXELS)).json()["detail"]
        slow.fails = False
        assert client.post("/predict", content=png(PIXELS)).status_code == 200


def test_a_request_that_does_not_arrive(file):
    app = application(file, ServeConfig(read_seconds=0.05))
    sent = []

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 408


def test_limits_are_numbers(little_onnx):
    for name, value in (("max_megapixels", float("nan")), ("max_mb", float("inf")), ("wait_ms", -1)):
        with pytest.raises(ModebridgeError, match=f"Expected {name} to be a finite number from 0, but got {value}"):
            ServeConfig(**{name: value})
    answer = CliRunner().invoke(program, ["serve", str(little_onnx), "--max-mb", "nan"])
    assert "Expected max_mb to be a finite number" in str(answer.exception)


def test_what_stops_it_before_it_starts(tmp_path, little_onnx):
    answer = CliRunner().invoke(program, ["serve", str(tmp_path / "none.onnx")])
    assert "to be a file, but it does not exist" in str(answer.exception)
    assert answer.output == "", "it does not say that it serves"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ModebridgeError, match=f"to listen on port {port} of 127.0.0.1, but got"):
            serve(little_onnx, ServeConfig(port=port))


PATIENT = """
import functools, sys
from modebridge.cli.boundary import run_program
from modebridge.deploy import serve
serve.ServeConfig = functools.partial(serve.ServeConfig, wait_ms=300)
run_program(sys.argv[1:])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_real_server_is_stopped_gently(little_onnx, number):
    """It exits with 0 and says nothing but where it serves; what had arrived is answered."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", PATIENT, "serve", str(little_onnx), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            said = server.stderr.readline()
            assert said.startswith(f"Serving {little_onnx} at http://127.0.0.1:{port}/predict")
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as link:
                link.request("GET", "/health")
                assert link.getresponse().read() == b"ok"
                link.request("POST", "/predict", png(PIXELS))
                time.sleep(0.1)  # it waits for others
                server.send_signal(number)
                assert "class" in json.loads(link.getresponse().read())
            assert server.wait(30) == 0
            assert server.stdout.read() + server.stderr.read() == ""
        finally:
            server.kill()
