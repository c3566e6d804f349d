"""Test-time augmentation: views of images, a mode's logits on each, and all of it as one module."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from modebridge.data import crop_and_flip
from modebridge.errors import ModebridgeError
from modebridge.members import Blueprint, ModeMember, TtaMember, base_epochs
from modebridge.members.tta_member import TtaPredictor, View, views_of
from modebridge.recipes import facts_of, network_of
from tests.members.methods_run import finished
from tests.runs.damaging import tiny
from tests.scenarios import EXACT, blobs, modes, tiny_net

IMAGES = torch.rand(5, 3, 7, 9, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("view", [*views_of(6, flip=True), View(down=2, across=-1)])
def test_a_view_is_a_crop_of_training(view: View) -> None:
    pad = max(abs(view.down), abs(view.across), 1)
    down, across = (torch.full((5,), pad - shift) for shift in (view.down, view.across))
    expected = crop_and_flip(IMAGES, down, across, torch.full((5,), view.mirrored), pad)
    assert torch.equal(view(IMAGES), expected)


def test_what_is_shifted_is_where_it_says() -> None:
    dot = torch.zeros(1, 1, 5, 5)
    dot[..., 2, 2] = 1
    assert View(down=1)(dot)[0, 0].nonzero().tolist() == [[3, 2]]
    assert View(across=-1)(dot)[0, 0].nonzero().tolist() == [[2, 1]]
    assert View(across=3)(dot).sum() == 0, "out of sight, and zeros come in"


def test_the_views_of_a_recipe() -> None:
    assert views_of(2, flip=False) == (View(), View(across=1))
    assert views_of(4, flip=True) == (View(), View(mirrored=True), View(across=1), View(across=-1))
    with pytest.raises(ModebridgeError, match="2 to 5 views on this data, but got 6"):
        views_of(6, flip=False)
    with pytest.raises(ModebridgeError, match="2 to 6 views on this data, but got 1"):
        views_of(1, flip=True)


@pytest.mark.parametrize("norm", [pytest.param("frn", marks=pytest.mark.slow), "bn"])
def test_each_view_is_a_head_and_the_module_their_mean(norm: str) -> None:
    net, (mode,) = tiny_net(1, norm, EXACT).eval(), modes(1, norm, EXACT)
    images = blobs(dtype=EXACT).images
    views = views_of(4, flip=True)
    predictor = TtaPredictor(net, "mode-0", mode, views)
    at = mode.load(net)
    by_hand = [at(images), at(images.flip(-1)), at(_moved(images, 1)), at(_moved(images, -1))]
    heads = predictor.to("cpu").heads(images, {"mode-0": (by_hand[0], {})})
    torch.testing.assert_close(heads, by_hand, rtol=0, atol=1e-12)
    expected = torch.stack([head.softmax(-1) for head in by_hand]).mean(0).log()
    torch.testing.assert_close(predictor.module()(images), expected, rtol=0, atol=1e-12)
    assert predictor.id != TtaPredictor(net, "mode-0", mode, views[:2]).id != mode.id


def _moved(images: Tensor, across: int) -> Tensor:
    moved = images.roll(across, -1)
    moved[..., 0 if across > 0 else -1] = 0
    return moved


def test_images_that_a_mirror_does_not_change_are_answered_as_by_the_mode() -> None:
    net, (mode,) = tiny_net(1, "frn", EXACT).eval(), modes(1, "frn", EXACT)
    images = blobs(dtype=EXACT).images
    images = images + images.flip(-1)
    module = TtaPredictor(net, "mode-0", mode, views_of(2, flip=True)).module()
    torch.testing.assert_close(module(images), mode.load(net)(images).log_softmax(-1), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_in_a_run_it_costs_a_network_a_view_and_no_training() -> None:
    run, answers = finished()
    assert [member.name for member in TtaMember.usual(run.recipe)] == ["tta-2", "tta-4"]
    assert base_epochs([TtaMember(4)], run.context) == base_epochs([ModeMember(0)], run.context)
    assert [answers.cost([name]) for name in ("tta-2", "tta-4")] == [(2.0, 1.0), (4.0, 1.0)]
    # Other than by the heads: the module on the images of the test split.
    predictor = run.load(TtaMember(4))
    assert isinstance(predictor, TtaPredictor)
    module = predictor.module()
    with torch.no_grad():
        logits = torch.cat([module(images) for images, _ in run.context.data.test()])
    torch.testing.assert_close(logits.double().exp(), answers.probabilities(["tta-4"]), rtol=0, atol=1e-6)
    assert torch.equal(answers.test["tta-4"][0], answers.test["mode-0"])


def test_it_mirrors_where_training_does_and_refuses_what_is_no_image() -> None:
    recipe = replace(tiny(), data=replace(tiny().data, flip=True))
    facts = facts_of(recipe)
    assert facts is not None
    blueprint = Blueprint(recipe, network_of(recipe, facts))
    assert TtaMember(2)._views(blueprint) == (View(), View(mirrored=True))
    blueprint.network = replace(blueprint.network, image=None)
    with pytest.raises(ModebridgeError, match=r"to be images of .*, but got several inputs by name; remove tta"):
        TtaMember(2).cost(blueprint)
