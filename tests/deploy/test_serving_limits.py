"""Servers that are attacked, hung, stopped and killed; real processes, sockets and signals."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import signal
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch
from PIL import Image

from modebridge import Ensemble, Mode
from modebridge.deploy.export import export
from tests.deploy.servers import Nursery, Server, ask, counts, eventually, most_memory

pytest.importorskip("litserve", reason="the extra `serve`")
from fastapi import HTTPException

from modebridge.deploy.request_body import ByteBudget

QUEUE, READ = 2.0, 1.0
HEAD = b"POST /predict HTTP/1.1\r\nHost: here\r\n"


def png(size, mode="L"):
    file = io.BytesIO()
    Image.new(mode, (size, size)).save(file, "PNG")
    return file.getvalue()


SMALL, HUGE = png(8), png(7000, "1")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))  # fast to export
    path = tmp_path_factory.mktemp("limits") / "one.onnx"
    whole = Ensemble(net, [Mode.from_module(net)])
    export(whole, path, torch.zeros(1, 1, 8, 8), uncertainty=False, elastic=False)
    return path


@pytest.fixture(scope="module")
def nursery():
    found = Nursery()
    yield found
    found.close()


@pytest.fixture(scope="module")
def shared(nursery, exported):
    """Used by all tests that leave it alive; the last one in this file does not."""
    found = Server(nursery, exported, exported.parent / "shared.log", queue_seconds=QUEUE, read_seconds=READ)
    eventually(lambda: found.health() == 200)
    yield found
    found.close()


@pytest.fixture
def server(shared):
    """And none of these tests makes it say anything, or is an error of its own."""
    yield shared
    assert shared.said().endswith("press Ctrl-C to stop.")
    assert 'modebridge_requests_total{code="500"}' not in counts(shared.url)


@pytest.fixture
def own(nursery, exported, tmp_path):
    """A server that has just been started: it takes requests, its worker is not there yet."""
    found = Server(nursery, exported, tmp_path / "log")
    eventually(lambda: found.health() == 503)
    yield found
    found.close()


def test_pictures_with_too_many_pixels_are_not_unpacked(server):
    before = most_memory(server.pid)
    in_json = json.dumps({"image": base64.b64encode(HUGE).decode()}).encode()
    with ThreadPoolExecutor(12) as clients:
        answers = list(clients.map(lambda _: ask(server.url, HUGE), range(11)))
    for status, body in [*answers, ask(server.url, in_json, "application/json")]:
        assert status == 413
        assert "at most 25 megapixels, but got 7000 x 7000 pixels" in json.loads(body)["detail"]
    # One of them takes 49 MB as grey, all of them twelve times that.
    assert most_memory(server.pid) < before + 40e6


def test_half_open_connections_are_closed(server):
    cases = {
        "silent": b"",
        "half a header": HEAD,
        "half a body": HEAD + b"Content-Length: 100\r\n\r\nabc",
        "half a piece": HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\nabc",
        "less than it said, refused": HEAD + b"Content-Length: 99999999999\r\n\r\nabc",
        # The second is there before the first is answered.
        "half a second request": HEAD + b"Content-Length: 1\r\n\r\nx" + HEAD + b"Content-Length: 100\r\n\r\nabc",
    }
    begin, before = time.monotonic(), counts(server.url)
    links = {name: connect(server, sent) for name, sent in cases.items()}
    kept = links["half a header after an answer"] = connect(server, b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n")
    assert b" 200 " in kept.recv(4096)
    kept.sendall(HEAD)
    # Byte by byte it does not take longer.
    slow = connect(server, HEAD)
    slow.settimeout(0.05)
    while not (heard := hear(slow)):
        slow.send(b"a")
    slow.close()
    assert b" 408 " in heard.split(b"\r\n")[0]
    assert ask(server.url, SMALL)[0] == 200
    codes = {name: statuses(link) for name, link in links.items()}
    took = time.monotonic() - begin
    assert codes == {
        "silent": [],
        "half a header": [b"408"],
        "half a body": [b"408"],
        "half a piece": [b"408"],
        "less than it said, refused": [b"413"],
        "half a second request": [b"400", b"408"],
        "half a header after an answer": [b"408"],
    }
    assert took < READ + 5
    eventually(lambda: counts(server.url).get(code(408), 0) == before.get(code(408), 0) + 3)


def test_requests_have_so_much_room_together():
    budget = ByteBudget(100)
    with budget.share() as first, budget.share() as second:
        first(60)
        with pytest.raises(HTTPException, match="Expected at most 100 bytes in all requests"):
            second(60)
    with budget.share() as third:
        third(100)


def test_clients_that_go_away_are_no_errors(server):
    before = counts(server.url).get(code(499), 0)
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(SMALL) + SMALL
    ends = [(b"Content-Length: 100\r\n\r\nabc", socket.socket.close)]
    ends += [(b"Transfer-Encoding: chunked\r\n\r\n10\r\nabc", socket.socket.close)]
    ends += [(b"Content-Length: 100\r\n\r\nabc", reset)]
    for gone, (sent, leave) in enumerate(ends, start=1):
        link = connect(server, HEAD + sent)
        in_progress(server)
        leave(link)
        eventually(lambda gone=gone: counts(server.url).get(code(499), 0) == before + gone)
    # Before the answer to a whole request: it may have been answered, or be counted as gone.
    reset(connect(server, whole))
    assert ask(server.url, SMALL)[0] == 200


@pytest.mark.slow
def test_a_worker_that_hangs_is_told_of(server):
    worker = server.worker()
    worker.suspend()
    try:
        begin = time.monotonic()
        with ThreadPoolExecutor(3) as clients:
            answers = list(clients.map(lambda _: ask(server.url, SMALL), range(3)))
        took = time.monotonic() - begin
        assert [status for status, _ in answers] == [504] * 3
        assert "Expected a result within 2 s" in json.loads(answers[0][1])["detail"]
        assert QUEUE <= took < QUEUE + 5
        assert server.health() == 503
        # What needs no worker is still answered.
        assert ask(server.url, b"no image")[0] == 400
    finally:
        worker.resume()
    eventually(lambda: server.health() == 200)
    assert ask(server.url, SMALL)[0] == 200


@pytest.mark.slow
def test_no_request_is_lost_when_told_to_end_under_load(nursery, exported, tmp_path):
    server = Server(nursery, exported, tmp_path / "log")
    try:
        eventually(lambda: server.health() == 200)

        def client(_):
            # A new connection each time, so that at any time some are not taken in yet.
            answered = 0
            try:
                while True:
                    assert ask(server.url, SMALL)[0] == 200
                    answered += 1
            except ConnectionRefusedError:
                return answered, 0
            except ConnectionResetError:
                return answered, 1

        with ThreadPoolExecutor(32) as clients:
            found = [clients.submit(client, k) for k in range(32)]
            eventually(lambda: counts(server.url).get(code(200), 0) > 300)
            os.kill(server.pid, signal.SIGTERM)
            answered, resets = map(sum, zip(*(one.result() for one in found), strict=True))
        assert answered > 300
        # The system resets a connection that arrives between the last look at the queue and its end; 17 of 32 were
        # reset before the queue was emptied.
        assert resets <= 2
        assert server.ended() == 0
    finally:
        server.close()


@pytest.mark.slow
def test_ctrl_c_while_it_starts(own):
    own.worker()
    own.press_ctrl_c()
    assert own.ended() == 0
    assert own.said().endswith("press Ctrl-C to stop.")


@pytest.mark.slow
def test_ctrl_c_twice_does_not_wait_for_requests(own):
    own.worker().suspend()
    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(ask, own.url, SMALL)
        in_progress(own)
        own.press_ctrl_c()
        # It waits for the one request, but takes no others.
        eventually(lambda: refused(own))
        assert psutil.pid_exists(own.pid)
        own.press_ctrl_c()
        assert own.ended() == 130
        assert isinstance(asked.exception(timeout=10), OSError)
    assert own.said().endswith("press Ctrl-C to stop.")


@pytest.mark.slow
def test_the_server_ends_with_its_worker(own):
    own.worker().suspend()
    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(ask, own.url, SMALL)
        in_progress(own)
        own.worker().kill()
        assert asked.result(timeout=30)[0] == 503
    assert own.ended() == 2
    assert own.said().endswith("but it ended by signal 9; start the server again.")


def test_an_endless_header_is_cut_off(shared):
    # Not for its time; a client that goes on sending may lose what it is told.
    with contextlib.suppress(ConnectionError):
        assert statuses(connect(shared, HEAD + b"X: " + b"a" * 66_000)) == [b"400"]


def test_kill_9_leaves_nobody_behind(shared):
    # The one that owns the port, the HTTP process, is the main process.
    assert refused(shared) is False
    os.kill(shared.pid, signal.SIGKILL)
    assert shared.ended() == -signal.SIGKILL
    assert refused(shared)


def code(status):
    return f'modebridge_requests_total{{code="{status}"}}'


def connect(server, sent):
    link = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    link.sendall(sent)
    return link


def in_progress(server):
    """Wait until the server works on one request."""
    eventually(lambda: counts(server.url)["modebridge_requests_in_progress"] == 1)


def refused(server):
    try:
        connect(server, b"").close()
    except ConnectionRefusedError:
        return True
    return False


def reset(link):
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()


def hear(link):
    try:
        return link.recv(4096)
    except TimeoutError:
        return b""


def statuses(link):
    return re.findall(rb"HTTP/1.1 (\d+)", rest(link))


def rest(link):
    """All that is said until the connection is closed."""
    parts = []
    while part := link.recv(4096):
        parts.append(part)
    link.close()
    return b"".join(parts)
