"""Real servers for tests, forked from one process that has imported what takes long."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import psutil

from modebridge.deploy.serve import ServeConfig

NURSERY = """
import json, os, sys
import modebridge.deploy.server
from modebridge.cli import boundary
from modebridge.cli.serve_command import ServeConfig, serve_file
for line in sys.stdin:
    asked = json.loads(line)
    if "pid" in asked:
        pid, status = os.waitpid(asked["pid"], os.WNOHANG)
        print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
    elif pid := os.fork():
        print(pid, flush=True)
    else:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        # As `modebridge serve` does it, with limits that its options do not have.
        boundary._verb = lambda words: serve_file(asked["file"], ServeConfig(**asked["config"])) or 0
        boundary.main()
"""


class Nursery:
    """Starts servers."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", NURSERY]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


class Server:
    """One server, in a session of its own as in a terminal of its own."""

    def __init__(self, nursery: Nursery, file: Path, log: Path, **config) -> None:
        self.nursery, self.log = nursery, log
        self.port = free_port()
        config = asdict(ServeConfig(port=self.port, **config))
        self.pid = nursery.ask(file=str(file), log=str(log), config=config)
        self.code = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def worker(self) -> psutil.Process:
        return eventually(lambda: next(iter(workers_of(self.pid)), None))

    def health(self) -> int | None:
        with contextlib.suppress(OSError):
            return ask(self.url, path="/health", method="GET")[0]
        return None

    def press_ctrl_c(self) -> None:
        os.killpg(self.pid, signal.SIGINT)

    def ended(self) -> int:
        """Its exit code, once it and all of its processes are gone."""
        if self.code is None:
            self.code = eventually(lambda: self.nursery.ask(pid=self.pid), end=lambda code: code is not None)
        eventually(lambda: gone(self.pid))
        return self.code

    def said(self) -> str:
        return " ".join(self.log.read_text().split())

    def close(self) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.ended()


def workers_of(pid):
    return [one for one in psutil.Process(pid).children() if "spawn_main" in " ".join(one.cmdline())]


def most_memory(pid):
    """The most bytes that a process ever had; nothing where there is no /proc."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if "VmHWM" in line)


def eventually(look, seconds=60.0, end=bool):
    """What is seen once it is there."""
    limit = time.monotonic() + seconds
    while not end(seen := look()):
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)
    return seen


def gone(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(url, body=None, kind="application/octet-stream", path="/predict", method="POST"):
    link = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        link.request(method, path, body, {"Content-Type": kind} if body is not None else {})
        answer = link.getresponse()
        return answer.status, answer.read()
    finally:
        link.close()


def counts(url):
    status, body = ask(url, path="/metrics", method="GET")
    assert status == 200
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
