"""Sharing by name: the hub's own local mode, a hub on this machine, and what is said where either is missing."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard, snapshot_download

import modebridge as mb
from modebridge.errors import ModebridgeError
from modebridge.files import Card, Metric
from modebridge.modes import Mode
from tests.files.objects import batch, ensemble
from tests.networks import Plain
from tests.scenarios import modes

SHA = "0123456789012345678901234567890123456789"


def placed(cache: Path, folder: Path, repo: str = "owner/name", branch: str = "main") -> Path:
    """A folder as the hub's library keeps a downloaded repository: blobs, links to them, and what main is."""
    place = cache / f"models--{repo.replace('/', '--')}"
    snapshot = place / "snapshots" / SHA
    snapshot.mkdir(parents=True)
    (place / "blobs").mkdir()
    (place / "refs").mkdir()
    (place / "refs" / branch).write_text(SHA)
    for k, file in enumerate(sorted(folder.iterdir())):
        shutil.copy(file, place / "blobs" / str(k))
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / str(k))
    return snapshot


@torch.no_grad()
def test_a_name_in_the_local_cache(tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = ensemble()
    whole.save_pretrained("made")
    snapshot = placed(cache, tmp_path / "made")
    assert Path(snapshot_download("owner/name", local_files_only=True)) == snapshot, "the library's own local mode"
    for again in (
        mb.load("owner/name"),
        mb.load("owner/name", revision="main"),
        mb.load("owner/name", revision=SHA),
        mb.Ensemble.from_pretrained("owner/name"),
        mb.Ensemble.from_pretrained("made"),
    ):
        assert torch.equal(again(batch()), whole(batch()))
    with pytest.raises(ModebridgeError, match="'owner/name' to hold a Mode, but it holds a stored ensemble"):
        Mode.from_pretrained("owner/name")
    with pytest.raises(ModebridgeError, match="'owner/name' at revision 'v9' to be a local folder or a repository"):
        mb.load("owner/name", revision="v9")
    with pytest.raises(ModebridgeError, match=r"LocalEntryNotFoundError: .*check the name, the network and your login"):
        mb.load("owner/other")
    modes(1)[0].save("owner/name")
    assert isinstance(mb.load("owner/name"), Mode), "a path that exists wins"


def test_a_student_and_a_network_of_ones_own(tmp_path, cache):
    (student,) = modes(1)
    placed(cache, student.save_pretrained(tmp_path / "student"), "me/student")
    assert Mode.from_pretrained("me/student").id == student.id
    net = Plain().eval()
    folder = mb.Ensemble(net, [Mode.from_module(net)]).save_pretrained(tmp_path / "own", place="me/own")
    placed(cache, folder, "me/own")
    with pytest.raises(ModebridgeError, match="pass net="):
        mb.load("me/own")
    assert len(mb.load("me/own", net=Plain())) == 1
    card = (folder / "README.md").read_text()
    assert 'mb.load("me/own", net=net)' in card
    assert "only its weights are stored" in card


@torch.no_grad()
def test_pushed_and_loaded_again(tmp_path, hub, cache):
    """Over HTTP, with the hub's own client, to a server on this machine."""
    whole = ensemble()
    address = whole.push_to_hub("me/fast", card=Card(license="mit"), private=True)
    assert address == f"{hub.address}/me/fast"
    assert hub.private == {"me/fast": True}
    files = hub.files("me/fast")
    assert set(files) == {"README.md", "config.json", "model.safetensors"}
    assert len(hub.repos["me/fast"]) == 1, "one commit"
    assert b"Bearer" not in b"".join(files.values())
    assert torch.equal(mb.load("me/fast")(batch()), whole(batch()))
    first = hub.repos["me/fast"][0][0]
    assert (cache / "models--me--fast" / "snapshots" / first).is_dir()
    whole.temperature.fill_(2.0)
    whole.push_to_hub("me/fast")
    assert float(mb.load("me/fast").temperature) == 2.0
    assert float(mb.load("me/fast", revision=first).temperature) == pytest.approx(1.37)
    with pytest.raises(ModebridgeError, match=r"'me/nothing' to be a local folder or .* RepositoryNotFound"):
        mb.load("me/nothing")
    with pytest.raises(ModebridgeError, match=r"at revision 'v9' .* RevisionNotFound"):
        mb.load("me/fast", revision="v9")
    before = len(hub.repos["me/fast"])
    with pytest.raises(ModebridgeError, match=r"Expected to upload 'me/fast', but got .*; log in with hf auth login"):
        whole.push_to_hub("me/fast", token="wrong")
    assert len(hub.repos["me/fast"]) == before


@pytest.mark.parametrize(
    "repo", ["name", "a/b/c", "/abs/path", "owner/", "ow ner/x", "../x", "a/-b", "", "a/" + "b" * 99]
)
def test_names_that_are_none(repo):
    with pytest.raises(ModebridgeError, match="to be OWNER/NAME"):
        modes(1)[0].push_to_hub(repo)
    with pytest.raises(ModebridgeError, match="Expected"):
        mb.load(repo)


def test_without_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    (mode,) = modes(1)
    mode.save_pretrained(tmp_path / "mode")
    assert Mode.from_pretrained(tmp_path / "mode").id == mode.id, "folders need no hub"
    for call in (lambda: mb.load("owner/name"), lambda: mode.push_to_hub("owner/name")):
        with pytest.raises(ModebridgeError, match=r"huggingface_hub .*not installed; pip install 'modebridge\[hub\]'"):
            call()


def test_the_card_as_the_hub_reads_it(tmp_path):
    card = Card(
        license="apache-2.0",
        pipeline_tag="image-classification",
        datasets=("uoft-cs/cifar10",),
        data='CIFAR-10, "clean": yes',
        metrics=(Metric("accuracy", 0.9375, "Accuracy"), Metric("nll", 0.25), Metric("ece", float("nan"))),
        sections=(("Data", "Ten classes."),),
    )
    folder = ensemble().save_pretrained(tmp_path / "fast", card=card, place="me/fast")
    read = ModelCard.load(folder / "README.md")
    assert read.data.library_name == "modebridge"
    assert read.data.license == "apache-2.0"
    assert read.data.pipeline_tag == "image-classification"
    assert read.data.datasets == ["uoft-cs/cifar10"]
    assert "deep-ensembles" in read.data.tags
    assert read.data.model_name == "fast"
    assert [(result.metric_type, result.metric_value) for result in read.data.eval_results] == [
        ("accuracy", 0.9375),
        ("nll", 0.25),
    ]
    (first, _) = read.data.eval_results
    assert (first.task_type, first.dataset_type) == ("image-classification", "uoft-cs/cifar10")
    assert (first.dataset_name, first.dataset_split) == ('CIFAR-10, "clean": yes', "test")
    assert "## Data\n\nTen classes." in read.text
    assert "under `apache-2.0`" in read.text
    assert 'ensemble = mb.load("me/fast")' in read.text


def test_a_card_that_knows_nothing(tmp_path):
    folder = modes(1)[0].save_pretrained(tmp_path / "plain")
    read = ModelCard.load(folder / "README.md")
    assert read.data.to_dict() == {"library_name": "modebridge", "tags": read.data.tags}
    assert "No license was given" in read.text
    modes(2)[1].save(folder)
    assert (folder / "README.md").exists(), "save leaves other files alone"
    assert json.loads((folder / "config.json").read_text())["kind"] == "mode"
