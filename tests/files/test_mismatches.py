"""Files that describe other modes, bridges or bodies than they hold, and modules that do not fit: one sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import modebridge as mb
from modebridge.bridges import Bridge
from modebridge.errors import ModebridgeError
from modebridge.files.stored_folder import CONFIG
from tests.files.objects import Own, batch, ensemble
from tests.files.test_damage import rewritten
from tests.scenarios import modes, tiny_net


class More(Own):
    """With a layer that was not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(3, 3)

    def forward(self, feature: Tensor) -> Tensor:
        return self.extra(super().forward(feature))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[type, Path]:
    """A bridge and an ensemble with a custom body."""
    root = tmp_path_factory.mktemp("custom")
    one = Bridge(Own(), modes(1), "layers.2", None, "mine")
    one.save(root / "bridge")
    mb.Ensemble(tiny_net(), modes(1), [one]).save(root / "fast")
    return {Bridge: root / "bridge", mb.Ensemble: root / "fast"}


@pytest.mark.parametrize("cls", [Bridge, mb.Ensemble])
@pytest.mark.parametrize(
    ("bodies", "message"),
    [
        (Own(), "bodies to be a list of modules, but got one module; put it in a list."),
        (nn.Sequential(Own()), "bodies to be a list of modules, but got one module; put it in a list."),
        (None, "bodies to be a list of modules, but got NoneType; pass a list."),
        ([Own], "bodies to be a list of modules, but it has the class Own; pass one module per bridge"),
        (["Own"], "bodies to be a list of modules, but it has str; pass one module per bridge"),
        ([], "a body for 'mine', because its Own is a custom module"),
        ([Own(), Own()], "but got 1 too many; leave them out."),
        ([nn.Linear(2, 3)], "the body of 'mine' to have 'first.weight' of shape (16, 16), as the stored weights do"),
        ([More()], "the body of 'mine' to have the tensors of the stored weights, but it also has 'extra.weight'"),
    ],
)
def test_bodies_that_do_not_fit(folders: dict[type, Path], cls: type, bodies: Any, message: str) -> None:
    for load in (cls.from_pretrained, mb.load):  # type: ignore[attr-defined]
        with pytest.raises(ModebridgeError, match=rf"^Expected .*{re.escape(message)}"):
            load(folders[cls], bodies=bodies)


@torch.no_grad()
def test_bodies_that_fit(folders: dict[type, Path]) -> None:
    again = [load(folders[Bridge], bodies=(Own(),)) for load in (Bridge.from_pretrained, mb.load)]
    feature = torch.rand(2, 16, 4, 4)
    assert torch.equal(again[0](feature), again[1](feature))


def test_a_net_that_is_no_module(folders: dict[type, Path]) -> None:
    for load in (mb.Ensemble.from_pretrained, mb.load):
        with pytest.raises(ModebridgeError, match="Expected net to be a module, but got the class Linear"):
            load(folders[mb.Ensemble], net=nn.Linear, bodies=[Own()])


def _bridge(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda stored: stored["bridges"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((_bridge(heads=heads), f"{heads} heads of a body with 2") for heads in (0, -1, 1, 3, 2.5, "two", None)),
        (lambda stored: stored["bridges"][1].update(heads=2), "2 heads of a body with 1"),
        (lambda stored: stored["bridges"].pop(), "tensors of parts that it does not have, such as bridges.1."),
        (lambda stored: stored["bridges"].clear(), "tensors of parts that it does not have, such as bridges.0."),
        (lambda stored: stored.update(modes=1), "tensors of parts that it does not have, such as modes.1."),
        (_bridge(inputs=[0, 1]), "inputs of a bridge that are not 1 of 2 modes"),
        (_bridge(inputs=[-1]), "inputs of a bridge that are not 1 of 2 modes"),
        (_bridge(reads=["a", "b"]), "inputs of a bridge that are not 2 of 2 modes"),
    ],
)
def test_a_file_that_claims_what_it_does_not_hold(tmp_path: Path, change: Any, message: str) -> None:
    """Two modes, a bridge with two heads and one of type II; hashes and seal fit."""
    ensemble().save(tmp_path)
    stored = json.loads((tmp_path / CONFIG).read_text())["object"]
    change(stored)
    rewritten(tmp_path, object=stored)
    for load in (mb.Ensemble.from_pretrained, mb.load):
        with pytest.raises(ModebridgeError, match=r"Expected '.*' to describe a Ensemble") as caught:
            load(tmp_path)
        assert message in str(caught.value)


@torch.no_grad()
def test_an_unchanged_description_loads(tmp_path: Path) -> None:
    whole = ensemble()
    whole.save(tmp_path)
    rewritten(tmp_path, object=json.loads((tmp_path / CONFIG).read_text())["object"])
    assert torch.equal(mb.Ensemble.from_pretrained(tmp_path)(batch()), whole(batch()))
