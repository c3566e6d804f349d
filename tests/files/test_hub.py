"""Sharing by name, from Python and by push and pull: the hub's local mode, a hub on this machine, docs/share.md."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import torchvision
from huggingface_hub import ModelCard, constants, snapshot_download
from typer.testing import CliRunner

import modebridge as mb
from modebridge.cli.app import app
from modebridge.errors import ModebridgeError
from modebridge.files import Card, push, save
from modebridge.modes import Mode
from modebridge.runs import ensemble_of, read_answers
from tests.files.objects import batch, ensemble
from tests.networks import Plain
from tests.runs.small import finished
from tests.scenarios import blobs, loader, modes, tiny_net

DOCS = Path(__file__).parents[2] / "docs" / "share.md"
SHA = "0123456789012345678901234567890123456789"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub's library, which is told to be offline."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    return tmp_path / "cache"


class FakeHub:
    """The three functions of the hub's library that we call, on folders of this machine; their arguments are checked.

    A repository is the list of its commits, the newest last; a commit is a folder.
    """

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        self.repos: dict[str, list[Path]] = {}
        self.private: dict[str, bool | None] = {}
        for owner, name in (
            (huggingface_hub.HfApi, "create_repo"),
            (huggingface_hub.HfApi, "upload_folder"),
            (huggingface_hub, "snapshot_download"),
        ):
            monkeypatch.setattr(owner, name, self._checked(getattr(owner, name), getattr(self, name)))

    def _checked(self, real: Any, ours: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            bound = inspect.signature(real).bind(*args, **options)
            if getattr(bound.arguments.get("self"), "token", None) == "wrong":
                raise ConnectionRefusedError("Invalid username or password.")
            return ours(**{name: value for name, value in bound.arguments.items() if name != "self"})

        return call

    def create_repo(self, repo_id: str, private: bool | None, exist_ok: bool) -> str:
        assert exist_ok or repo_id not in self.repos
        self.repos.setdefault(repo_id, [])
        self.private.setdefault(repo_id, private)
        return f"https://hub/{repo_id}"

    def upload_folder(self, repo_id: str, folder_path: Path, allow_patterns: Any, commit_message: str) -> None:
        commit = self._path / repo_id / str(len(self.repos[repo_id]))
        commit.mkdir(parents=True)
        for file in folder_path.iterdir():
            assert file.name in allow_patterns
            (commit / file.name).write_bytes(file.read_bytes())
        self.repos[repo_id].append(commit)

    def snapshot_download(self, repo_id: str, revision: str | None, allow_patterns: Any, library_name: str) -> str:
        if repo_id not in self.repos:
            raise FileNotFoundError("no such repository\nof many lines")
        return str(self.repos[repo_id][-1 if revision is None else int(revision)])


@pytest.fixture
def hub(tmp_path, monkeypatch):
    return FakeHub(tmp_path / "hub", monkeypatch)


def placed(cache: Path, folder: Path) -> Path:
    """A folder as the hub's library keeps a downloaded repository: blobs, links to them, and what main is."""
    place = cache / "models--owner--name"
    snapshot = place / "snapshots" / SHA
    for inner in (snapshot, place / "blobs", place / "refs"):
        inner.mkdir(parents=True)
    (place / "refs" / "main").write_text(SHA)
    for k, file in enumerate(sorted(folder.iterdir())):
        shutil.copy(file, place / "blobs" / str(k))
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / str(k))
    return snapshot


@torch.no_grad()
def test_a_name_in_the_local_cache(tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = ensemble()
    save(whole, "made", card=Card())
    snapshot = placed(cache, tmp_path / "made")
    assert Path(snapshot_download("owner/name", local_files_only=True)) == snapshot, "the library's own local mode"
    for place, revision in (("owner/name", None), ("owner/name", "main"), ("owner/name", SHA), ("made", None)):
        assert torch.equal(mb.load(place, revision=revision)(batch()), whole(batch()))
    with pytest.raises(ModebridgeError, match="'owner/name' at revision 'v9' to be a local folder or a repository"):
        mb.load("owner/name", revision="v9")
    with pytest.raises(ModebridgeError, match=r"LocalEntryNotFoundError: .*check the name, the network and your login"):
        mb.load("owner/other")
    modes(1)[0].save("owner/name")
    assert isinstance(mb.load("owner/name"), Mode), "a path that exists wins"
    with pytest.raises(ModebridgeError, match="Expected revision only for names on the hub"):
        mb.load("owner/name", revision="main")


@torch.no_grad()
def test_pushed_and_loaded_again(hub):
    whole = ensemble()
    assert push(whole, "me/fast", card=Card(license="mit"), private=True) == "https://hub/me/fast"
    assert hub.private == {"me/fast": True}
    (commit,) = hub.repos["me/fast"]
    assert {file.name for file in commit.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    assert torch.equal(mb.load("me/fast")(batch()), whole(batch()))
    whole.temperature.fill_(2.0)
    push(whole, "me/fast")
    assert float(mb.load("me/fast").temperature) == 2.0
    assert float(mb.load("me/fast", revision="0").temperature) == pytest.approx(1.37)
    with pytest.raises(ModebridgeError, match=r"a repository .* FileNotFoundError: 'no such repository'; check"):
        mb.load("me/nothing")
    with pytest.raises(ModebridgeError, match=r"Expected to upload 'me/fast', but got .*; log in with hf auth login"):
        push(whole, "me/fast", token="wrong")
    assert len(hub.repos["me/fast"]) == 2


@pytest.mark.parametrize(
    "repo", ["name", "a/b/c", "/abs/path", "owner/", "ow ner/x", "../x", "a/-b", "", "a/" + "b" * 99]
)
def test_names_that_are_none(repo):
    with pytest.raises(ModebridgeError, match="to be OWNER/NAME"):
        push(modes(1)[0], repo)
    with pytest.raises(ModebridgeError, match="Expected"):
        mb.load(repo)


def test_without_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    (mode,) = modes(1)
    mode.save(tmp_path / "mode")
    assert mb.load(tmp_path / "mode").id == mode.id, "folders need no hub"
    for call in (lambda: mb.load("owner/name"), lambda: push(mode, "owner/name")):
        with pytest.raises(ModebridgeError, match=r"huggingface_hub .*not installed; .*pip install -e '\.\[hub\]'"):
            call()


def test_the_card_as_the_hub_reads_it(tmp_path):
    card = Card(
        license="apache-2.0",
        task="image-classification",
        datasets=("uoft-cs/cifar10",),
        data='CIFAR-10, "clean": yes',
        metrics={"accuracy": 0.9375, "nll": 0.25, "ece": float("nan")},
        sections={"Data": "Ten classes."},
        place="me/fast",
    )
    read = ModelCard.load(save(ensemble(), tmp_path / "fast", card=card) / "README.md")
    header = {name: getattr(read.data, name) for name in ("library_name", "license", "pipeline_tag", "model_name")}
    assert list(header.values()) == ["modebridge", "apache-2.0", "image-classification", "fast"]
    assert read.data.datasets == ["uoft-cs/cifar10"]
    assert "deep-ensembles" in read.data.tags
    scores = [(result.metric_type, result.metric_value) for result in read.data.eval_results]
    assert scores == [("accuracy", 0.9375), ("nll", 0.25)]
    (first, _) = read.data.eval_results
    assert (first.task_type, first.dataset_type) == ("image-classification", "uoft-cs/cifar10")
    assert (first.dataset_name, first.dataset_split) == ('CIFAR-10, "clean": yes', "test")
    assert "## Data\n\nTen classes." in read.text
    assert "under `apache-2.0`" in read.text
    assert 'ensemble = mb.load("me/fast")' in read.text


def test_a_card_that_knows_nothing(tmp_path):
    net = Plain().eval()
    whole = mb.Ensemble(net, [Mode.from_module(net)])
    card = (save(whole, tmp_path / "own", card=Card(place="me/own")) / "README.md").read_text()
    assert 'mb.load("me/own", net=net)' in card
    assert "only its weights are stored" in card
    read = ModelCard.load(save(modes(1)[0], tmp_path / "plain", card=Card()) / "README.md")
    assert read.data.to_dict() == {"library_name": "modebridge", "tags": read.data.tags}
    assert "No license was given" in read.text


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


def test_wrong_wishes(tmp_path):
    for words, message in (
        (("push", tmp_path), "Expected OWNER/NAME on the hub, or --folder DIR"),
        (("push", tmp_path, "me/it"), "to be a run folder"),
    ):
        assert message in str(invoke(*words).exception)


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
