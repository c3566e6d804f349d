"""`modebridge serve`: what stops it before it starts; the running server is in tests/deploy/test_serving.py."""

from __future__ import annotations

import socket

import pytest
from typer.testing import CliRunner

from modebridge import ModebridgeError
from modebridge.cli.app import app
from modebridge.deploy import serve

pytest.importorskip("litserve", reason="the extra `serve`")


def refused(*arguments):
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    assert isinstance(result.exception, ModebridgeError), result.output
    return str(result.exception)


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_no_such_file(tmp_path, port):
    assert "to be a file" in refused(tmp_path / "none.onnx", "--port", port)


def test_a_file_that_is_none_of_ours(tmp_path, port):
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    assert "to be an ONNX file" in refused(tmp_path / "bad.onnx", "--port", port)


def test_a_port_below_1024(tmp_path):
    assert "from 1024 to 65535" in refused(tmp_path / "none.onnx", "--port", 80)


def test_the_extra_is_named_where_it_is_missing(tmp_path, port, monkeypatch):
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    assert "pip install 'modebridge[serve]'" in refused(tmp_path / "none.onnx", "--port", port)
