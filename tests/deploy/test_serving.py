"""A real server in processes of its own: right answers to many at a time, sentences for bad requests."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from benchmarks.server_load import check_distinct, load_server
from PIL import Image
from torch import nn

from modebridge import BridgedEnsemble, Mode, ModebridgeError
from modebridge.deploy.deployed import Deployed
from modebridge.deploy.export import export
from modebridge.deploy.image_decoding import from_bytes
from modebridge.deploy.serve import ServeConfig, check_config
from tests.deploy.servers import ask, counts, eventually, free_port, gone, workers_of

pytest.importorskip("litserve", reason="the extra `serve`")
SHAPE = (1, 8, 8)
CLASSES = [f"digit {k}" for k in range(10)]


def png(seed):
    cells = np.random.default_rng(seed).integers(0, 256, (3, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(cells).resize((8, 8), Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


FILES = [png(seed) for seed in range(24)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    torch.manual_seed(0)
    # Fast to export; it is the server that is tested.
    net = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)).eval()
    whole = BridgedEnsemble(net, [Mode.from_module(net)])
    pixels = torch.from_numpy(np.stack([from_bytes(file, SHAPE) for file in FILES]))
    # Untrained, it says much the same of all images: stretched so far that a mix-up would be seen.
    whole.temperature.fill_(float(whole(pixels).log().std()))
    path = tmp_path_factory.mktemp("served") / "one.onnx"
    export(whole, path, pixels[:1], uncertainty=False, elastic=False, classes=CLASSES)
    return path


@pytest.fixture(scope="module")
def expected(exported):
    pixels = np.stack([from_bytes(file, SHAPE) for file in FILES])
    return np.asarray(Deployed.load(exported)(pixels).probabilities, dtype=np.float64)


@pytest.fixture(scope="module")
def url(exported):
    port = free_port()
    options = ["--port", str(port), "--batch", "8", "--timeout-ms", "5", "--max-mb", "0.05"]
    command = [sys.executable, "-m", "modebridge", "serve", str(exported), *options]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    found = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: process.poll() is not None or well(found))
        yield found
        check_end(process, found)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def check_end(process, url):
    """It ends when asked to, with all of its processes, without a word; a request that was there has its answer."""
    (worker,) = workers_of(process.pid)
    worker.suspend()
    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(ask, url, FILES[3])
        eventually(lambda: counts(url)["modebridge_requests_in_progress"] == 1)
        # Ctrl-C in its terminal; systemd sends SIGTERM to all of them too.
        os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGTERM)
        worker.resume()
        assert asked.result()[0] == 200
    out, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert (out, errors.split()[-3:]) == (b"", [b"Ctrl-C", b"to", b"stop."])
    eventually(lambda: gone(process.pid))


def well(url):
    with contextlib.suppress(OSError):
        return ask(url, path="/health", method="GET")[0] == 200


def said(answer):
    status, body = answer
    assert status == 200, body
    return json.loads(body)


def test_an_image_file_gets_its_answer(url, expected):
    answer = said(ask(url, FILES[3]))
    np.testing.assert_allclose(answer["probabilities"], expected[3], atol=1e-5)
    assert answer["index"] == expected[3].argmax()
    assert answer["class"] == CLASSES[answer["index"]]
    assert answer["probability"] == max(answer["probabilities"])
    assert answer["used"] == 1
    assert answer["entropy"] == pytest.approx(-(expected[3] * np.log(expected[3])).sum(), abs=1e-4)


def test_json_gets_the_same_answer(url, expected):
    for image in (base64.b64encode(FILES[3]).decode(), from_bytes(FILES[3], SHAPE).tolist()):
        answer = said(ask(url, json.dumps({"image": image}).encode(), "application/json"))
        np.testing.assert_allclose(answer["probabilities"], expected[3], atol=1e-5)


def test_a_form_gets_the_same_answer(url, expected):
    head = (
        b'--edge\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    )
    answer = said(ask(url, head + FILES[3] + b"\r\n--edge--\r\n", "multipart/form-data; boundary=edge"))
    np.testing.assert_allclose(answer["probabilities"], expected[3], atol=1e-5)


@pytest.mark.parametrize(
    ("body", "kind", "status", "words"),
    [
        (b"", "image/png", 400, "Expected an image file, but got 0 bytes"),
        (b"no image", "image/png", 400, "Expected an image file, but got 8 bytes"),
        (FILES[0][:50], "image/png", 400, "Expected an image file"),
        (b"{", "application/json", 400, "Expected the body to be JSON"),
        (b"{}", "application/json", 400, "Expected image to be"),
        (b"[1]", "application/json", 400, "Expected image to be"),
        (b'{"image": "%%%"}', "application/json", 400, "to be base64"),
        (b'{"image": [[[0.5]]]}', "application/json", 400, "got shape (1, 1, 1)"),
        (b"--edge--\r\n", "multipart/form-data; boundary=edge", 400, "Expected a form with one image file, but got 0"),
        (b"--edge", "multipart/form-data", 400, "Expected a form"),
        (b"x" * 50_001, "image/png", 413, "at most 50000 bytes"),
    ],
)
def test_bad_requests_get_a_sentence(url, body, kind, status, words):
    code, answer = ask(url, body, kind)
    assert code == status
    sentence = json.loads(answer)["detail"]
    assert words in sentence
    assert "Traceback" not in sentence


def test_a_request_that_hides_its_size_is_cut_off(url):
    # In pieces, without a Content-Length.
    code, answer = ask(url, iter([b"x" * 20_000] * 4), "image/png")
    assert code == 413
    assert "at most 50000 bytes" in json.loads(answer)["detail"]


def test_32_clients_get_their_own_answers_while_others_send_rubbish(url, expected):
    before = counts(url)
    rubbish = subprocess.Popen([sys.executable, "-c", RUBBISH, url], stdout=subprocess.PIPE)
    found = load_server(url, FILES, expected, clients=32, seconds=2.0)
    out, _ = rubbish.communicate(timeout=30)
    assert (found.wrong, found.lost) == (0, 0)
    assert found.right == found.asked >= 32
    # Images that wait together run together.
    assert found.mean_batch > 1.2
    codes = json.loads(out)
    assert set(codes) == {400}
    after = counts(url)
    for code, count in (("200", found.asked), ("400", len(codes))):
        name = f'modebridge_requests_total{{code="{code}"}}'
        assert after[name] - before.get(name, 0) == count
    assert after['modebridge_batch_size_bucket{le="8"}'] == after["modebridge_batch_size_count"]


RUBBISH = """
import http.client, json, sys, time
from urllib.parse import urlsplit
codes, end = [], time.monotonic() + 1.5
while time.monotonic() < end:
    link = http.client.HTTPConnection(urlsplit(sys.argv[1]).netloc, timeout=30)
    link.request("POST", "/predict", b"rubbish")
    codes.append(link.getresponse().status)
    link.close()
print(json.dumps(codes))
"""


def test_the_file_tells_about_itself(url):
    answer = said(ask(url, path="/info", method="GET"))
    assert answer["model"]["classes"] == CLASSES


def test_a_mix_up_would_be_seen(url, expected):
    found = load_server(url, FILES, np.roll(expected, 1, axis=0), clients=2, seconds=0.2)
    assert found.right == 0
    assert found.wrong == found.asked > 0


def test_answers_that_look_alike_are_refused():
    with pytest.raises(ModebridgeError, match="two images differ by"):
        check_distinct(np.full((2, 3), 1 / 3), 1e-5)


def test_a_server_that_is_not_there_loses_requests(expected):
    found = load_server(f"http://127.0.0.1:{free_port()}", FILES, expected, clients=2, seconds=0.05)
    assert found.lost == found.asked > 0
    assert found.right == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"host": "example.org"}, "Expected host to be one of"),
        ({"port": 80}, "Expected port to be from 1024"),
        ({"batch": 0}, "Expected batch to be at least 1"),
        ({"timeout_ms": -1.0}, "Expected timeout_ms"),
        ({"max_mb": 0.0}, "Expected max_mb to be above 0"),
        ({"max_megapixels": 0.0}, "Expected max_megapixels to be above 0"),
        ({"max_mb": float("inf")}, "Expected max_mb to be above 0, but got inf"),
        ({"queue_seconds": float("nan")}, "Expected queue_seconds to be above 0"),
        ({"read_seconds": 0.0}, "Expected read_seconds to be above 0"),
    ],
)
def test_settings_that_cannot_be(change, said):
    with pytest.raises(ModebridgeError, match=said):
        check_config(replace(ServeConfig(port=free_port()), **change))


def test_a_port_in_use_is_a_sentence(url):
    with pytest.raises(ModebridgeError, match="another program is using it"):
        check_config(ServeConfig(port=urlsplit(url).port))
