"""Costs: counted by hand, the paper's 66 cells, and never a change to what is counted."""

import functools
import importlib
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from modebridge.bridges import Bridge, body_for, body_like, last_blocks_tap
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.nets import SPECS, resnet
from modebridge.nets.flops import feature_shapes
from modebridge.scoring import combination_cost, cost, module_cost
from tests.scenarios import TINY, modes, tiny_net

PAPER = json.loads((Path(__file__).parents[1] / "references" / "paper.json").read_text())["tables"]
NAMES = {"tin200": "Tiny ImageNet", "in1k": "ImageNet", "cifar100": "CIFAR-100"}

# (net, table, row, modes, kind, slim, bridges, projection) of every row with bridges of one kind.
ROWS = [
    *[
        (net, "type1", f"ResNet (DE-1) + {n} Bridge_{size}", 1, "I", slim, n, True)
        for net in ("tin200", "in1k")
        for size, slim in (("sm", 2), ("md", 1))
        for n in (1, 2, 3)
    ],
    ("tin200", "swa", "ResNet (SWA) + 4 Bridge_md", 1, "I", 1, 4, True),
    *[
        (net, "type2", f"DE-4 + {n} Bridge_{size}", 4, "II", slim, n, True)
        for net in ("tin200", "in1k")
        for size, slim in (("sm", 2), ("md", 1))
        for n in (1, 2, 4, 6)
    ],
    # Bridges alone; the narrow ones only add up without the first block's projection.
    *[("cifar100", "model_size", f"CNN {256 // slim} ch", 0, "II", slim, 1, slim == 1) for slim in (8, 4, 2, 1)],
]

# net, kind, slim, projection: multiply-adds and parameters relative to one base, and the bridge's parameters.
TRUE = [
    ("tin200", "I", 2, True, 0.04975, 0.1712, 3_661_256),
    ("tin200", "I", 1, True, 0.18090, 0.6181, 13_220_552),
    ("tin200", "II", 2, True, 0.05880, 0.2018, 4_316_616),
    ("tin200", "II", 1, True, 0.19899, 0.6794, 14_531_272),
    ("in1k", "I", 2, True, 0.06229, 0.2124, 5_432_808),
    ("in1k", "I", 1, True, 0.19840, 0.6655, 17_025_000),
    ("in1k", "II", 2, True, 0.08742, 0.2636, 6_743_528),
    ("in1k", "II", 1, True, 0.24866, 0.7679, 19_646_440),
    ("cifar100", "II", 8, False, 0.01156, 0.0266, 197_604),
    ("cifar100", "II", 4, False, 0.02861, 0.0656, 487_268),
    ("cifar100", "II", 2, False, 0.07923, 0.1807, 1_343_076),
    ("cifar100", "II", 1, True, 0.25432, 0.5775, 4_292_708),
]


@functools.cache
def base(name):
    with torch.device("meta"):  # architectures alone: no weights are ever drawn
        return resnet(name)


@functools.cache
def fed(name, kind, slim, projection=True):
    """A bridge's body with the shapes of what it reads."""
    spec = SPECS[name]
    with torch.device("meta"):
        body = body_like(spec, kind, slim, projection=projection)
    tap = last_blocks_tap(spec)
    shape = feature_shapes(base(name), spec.image, [tap])[tap]
    return body, (shape,) * len(kind)


# Counting is pure, so each architecture is counted once for all the rows below.
COUNTED = functools.cache(module_cost)


def combined(name, modes, kind, slim, count, projection, convention):
    bridges = [fed(name, kind, slim, projection)] * count
    with pytest.MonkeyPatch.context() as patch:
        # By its module: `modebridge.scoring.cost` as an attribute is the function.
        patch.setattr(importlib.import_module("modebridge.scoring.cost"), "module_cost", COUNTED)
        return combination_cost(base(name), SPECS[name].image, modes, bridges, convention)


@pytest.mark.parametrize(("name", "table", "row", "modes", "kind", "slim", "count", "projection"), ROWS)
def test_the_paper_s_66_cells(name, table, row, modes, kind, slim, count, projection):
    assert len(ROWS) == 33
    printed = PAPER[table]["datasets"][NAMES[name]][row]
    found = combined(name, modes, kind, slim, count, projection, "paper")
    assert f"{found.relative_flops:.3f}" == printed["FLOPs"]["printed"]
    assert f"{found.relative_params:.3f}" == printed["#Params"]["printed"]


@pytest.mark.parametrize(("name", "kind", "slim", "projection", "flops", "params", "count"), TRUE)
def test_the_true_columns(name, kind, slim, projection, flops, params, count):
    found = combined(name, 0, kind, slim, 1, projection, "counted")
    assert round(found.relative_flops, 5) == flops
    assert round(found.relative_params, 4) == params
    assert found.params == count
    # The paper's parameters are a third of the truth, up to its rounding.
    printed = combined(name, 0, kind, slim, 1, projection, "paper")
    assert printed.params == count
    assert printed.relative_params == pytest.approx(found.relative_params / 3, rel=0.02)


@pytest.mark.parametrize(
    ("module", "shapes", "flops", "params"),
    [
        (nn.Linear(3, 5), [(3,)], 15, 20),
        (nn.Conv2d(3, 8, 3, padding=1), [(3, 6, 6)], 8 * 36 * 27, 8 * 27 + 8),
        (nn.Conv2d(4, 4, 3, groups=4), [(4, 5, 5)], 4 * 9 * 9, 4 * 9 + 4),
        (nn.Conv2d(3, 8, 3, stride=2, padding=1), [(3, 6, 6)], 8 * 9 * 27, 8 * 27 + 8),
        (nn.Flatten(), [(3,)], 0, 0),
        (nn.Linear(3, 5).double(), [(3,)], 15, 20),
    ],
)
def test_counts_by_hand(module, shapes, flops, params):
    found = module_cost(module, *shapes)
    assert (found.flops, found.params) == (flops, params)


def test_tied_weights_and_the_paper_s_max_pools():
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    assert module_cost(tied, (4,)).params == 24
    pooled = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2))
    assert module_cost(pooled, (3, 4, 4), convention="paper").flops == 24 + 48


@pytest.mark.parametrize("convention", ["counted", "paper"])
def test_an_ensemble_is_its_combination(convention):
    net, members, tap = tiny_net(), modes(3), last_blocks_tap(TINY)
    bodies = [body_like(TINY, "I", 2), body_like(TINY, "II", 1), body_like(TINY, "II", 4)]
    read = [members[:1], members[:2], members[1:]]
    bridges = [Bridge(body, ends, tap) for body, ends in zip(bodies, read, strict=True)]
    found = cost(Ensemble(net, members, bridges), (1, 8, 8), convention)
    fed = [(body, [(8, 8, 8)] * len(ends)) for body, ends in zip(bodies, read, strict=True)]
    assert found == combination_cost(net, (1, 8, 8), 3, fed, convention)
    assert found.params == sum(p.numel() for module in (net, net, net, *bodies) for p in module.parameters())
    assert found.relative_flops == pytest.approx(found.flops / module_cost(net, (1, 8, 8), convention=convention).flops)


def test_batch_norm_in_the_base_or_a_bridge_refuses_the_paper_s_rule():
    frn, bn = tiny_net(), tiny_net(norm="bn")
    body = body_for((4, 8, 8), 3, "I", norm="bn")
    assert combination_cost(bn, (1, 8, 8), 1).flops > 0
    for net, bridges in [(bn, []), (frn, [(body, [(4, 8, 8)])])]:
        with pytest.raises(ModebridgeError, match=r"fitted, but got BatchNorm2d in .* leave out the paper's counting"):
            combination_cost(net, (1, 8, 8), 1, bridges, "paper")
    with pytest.raises(ModebridgeError, match="but got none in Linear"):
        combination_cost(nn.Linear(3, 2), (3,), 1, convention="paper")


def test_a_base_without_products_has_no_unit():
    found = combination_cost(nn.Flatten(), (3,), 2, [(nn.Linear(3, 2), [(3,)])])
    assert (found.flops, found.params) == (6, 8)
    assert math.isnan(found.relative_flops)
    assert combination_cost(nn.Flatten(), (3,), 2).relative_flops == 2


def test_refusals():
    net = tiny_net()
    with pytest.raises(ModebridgeError, match=r"to run on zeros of shape \(1, 3, 8, 8\)"):
        module_cost(net, (3, 8, 8))
    with pytest.raises(ModebridgeError, match="convention to be 'counted' or 'paper'"):
        module_cost(net, (1, 8, 8), convention="printed")
    with pytest.raises(ModebridgeError, match="modes to be at least 0"):
        combination_cost(net, (1, 8, 8), -1)
