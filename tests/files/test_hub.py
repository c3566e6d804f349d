"""Sharing by name: the hub's own local mode, a hub on this machine, and what is said where either is missing."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard, snapshot_download

import modebridge as mb
from modebridge.errors import ModebridgeError
from modebridge.files import Card, push, save
from modebridge.modes import Mode
from tests.files.objects import batch, ensemble
from tests.networks import Plain
from tests.scenarios import modes

SHA = "0123456789012345678901234567890123456789"


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
        with pytest.raises(ModebridgeError, match=r"huggingface_hub .*not installed; pip install 'modebridge\[hub\]'"):
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
