"""push and pull from a run folder, and docs/share.md as it stands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
import torchvision
from typer.testing import CliRunner

import modebridge as mb
from modebridge.cli.app import app
from modebridge.files import push
from modebridge.modes import Mode
from modebridge.runs import ensemble_of, read_answers
from tests.files.objects import ensemble
from tests.networks import Plain
from tests.runs.small import finished
from tests.scenarios import blobs, loader, tiny_net

DOCS = Path(__file__).parents[2] / "docs" / "share.md"


def invoke(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("sharing") / "runs" / "digits")


@pytest.mark.slow
@torch.no_grad()
def test_pushed_and_pulled(run, tmp_path, hub, monkeypatch):
    """The commands of docs/share.md, in order."""
    monkeypatch.chdir(run.path.parents[1])
    (block,) = re.findall(r"```sh\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    commands = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    assert [words[0] for words in commands] == ["push", "push", "pull"]
    for words in commands:
        answer = invoke(*words)
        assert answer.exit_code == 0, (answer.output, answer.exception)
    wanted, notes = ensemble_of(run, ["mode-0", "I-0-1-small"])
    for place in ("digits-bridge", "me/digits-bridge"):
        assert torch.equal(mb.load(place)(notes["example"]), wanted(notes["example"])), "what export would take"
    (commit,) = hub.repos["me/digits-bridge"]
    for name in ("README.md", "config.json", "model.safetensors"):
        assert Path("digits-bridge", name).read_bytes() == (commit / name).read_bytes()
    answer = invoke("push", run.path, "--folder", tmp_path / "shared", "--json")
    record = json.loads(answer.stdout)
    assert record["members"] == ensemble_of(run)[1]["names"], "what is recommended"
    assert record["nll"] == pytest.approx(read_answers(run).score(record["members"]).nll)
    assert record["needs_net"] is False
    assert mb.load(tmp_path / "shared").calibrated
    assert "names no license" in answer.stderr


def test_wrong_wishes(tmp_path, cache):
    for arguments, message in (
        (("push", tmp_path), "Expected OWNER/NAME on the hub, or --folder DIR"),
        (("push", tmp_path, "nonsense"), "to be OWNER/NAME, but got 'nonsense'"),
        (("push", tmp_path, "me/it"), "to be a run folder"),
        (("pull", "nonsense"), "to be OWNER/NAME"),
        (("pull", "me/nothing", tmp_path / "x"), "check the name, the network and your login"),
    ):
        answer = invoke(*arguments)
        assert answer.exit_code != 0
        assert message in str(answer.exception)
    assert not (tmp_path / "x").exists()


def test_a_card_in_any_encoding(tmp_path, hub):
    push(ensemble(), "me/it")
    (hub.repos["me/it"][0] / "README.md").write_bytes(b"\xff\xfe caf\xe9")
    assert invoke("pull", "me/it", tmp_path / "x").exit_code == 0
    assert (tmp_path / "x" / "README.md").read_bytes() == b"\xff\xfe caf\xe9"


class MyNet(Plain):
    pass


def test_the_code_of_the_page(tmp_path, monkeypatch, hub):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    shuffle, own = torchvision.models.shufflenet_v2_x0_5(num_classes=3).eval(), MyNet().eval()
    space = {
        "fast": ensemble(),
        "images": blobs(4).images,
        "test": loader(12),
        "other": mb.Ensemble(shuffle, [Mode.from_module(shuffle)]),
        "mine": mb.Ensemble(own, [Mode.from_module(own)]),
        "MyNet": MyNet,
        "net": tiny_net(),
    }
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(block, space)
    assert torch.equal(space["again"](space["images"]), space["fast"](space["images"]))
    assert "my photos" in (hub.repos["me/fast"][0] / "README.md").read_text()
