"""Snapshot ensembles and fast geometric ensembles: chains of networks, each trained on from where another ended."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from modebridge import Mode, fit_mode, seeds
from modebridge.errors import ModebridgeError
from modebridge.members import FgeMember, ModeMember, SnapshotMember, SwaMember, base_epochs, parse_member, row_plans
from modebridge.members.fge_member import FgeWeights
from modebridge.members.snapshot_member import SnapshotWeights
from modebridge.nets import ResNet, spec_of
from modebridge.recipes import find_recipe
from modebridge.runs import Run, ensemble_of
from modebridge.runs.logits import Logits
from modebridge.training import TrainConfig, TriangleConfig, side_by_side
from tests.members.methods_run import NAMES, SEED, batches, finished, recipe

SPEC = spec_of("digits", "bn", 10)


@pytest.fixture
def run() -> Run:
    return finished()[0]


def trained(start: Mode | None, config: TrainConfig, *names: str) -> Mode:
    """One cycle by the library's functions."""
    net = ResNet(SPEC, seeds.generator(SEED, "mode", 0))
    net = net if start is None else start.load(net).requires_grad_()
    return fit_mode(net, batches(*names), config=replace(config, seed=seeds.seed_for(SEED, *names)))


def test_a_snapshot_ensemble_is_one_training_with_warm_restarts(run: Run) -> None:
    mode = recipe().mode

    def by_hand() -> tuple[str, str]:
        first = trained(None, replace(mode, epochs=1), "snapshots", "1-of-2")
        second = trained(first, replace(mode, epochs=2, warmup=1), "snapshots", "2-of-2")
        return first.id, second.id

    ((one, two),) = side_by_side([by_hand])
    assert [run.load(SnapshotMember(k, 2)).mode.id for k in (1, 2)] == [one, two]


def test_fge_goes_on_from_mode_0(run: Run) -> None:
    config = TriangleConfig(epochs=2, lr=0.05, weight_decay=1e-3)

    def by_hand() -> tuple[str, str]:
        first = trained(run.mode(0), config, "fge", "1")
        return first.id, trained(first, config, "fge", "2").id

    ((one, two),) = side_by_side([by_hand])
    assert [run.load(FgeMember(k)).mode.id for k in (1, 2)] == [one, two]


def test_the_rates_are_those_of_the_papers() -> None:
    """Huang et al.: a0/2 (cos(pi mod(t - 1, T/M) / (T/M)) + 1); Garipov et al.: a triangle, least where it is taken."""
    paper = find_recipe("cifar10")
    cycle = SnapshotWeights(3, 4).training(paper)
    assert (cycle.epochs, cycle.keep) == (50, "last")
    for t in (1, 2, 25, 50):
        assert cycle.lr * cycle.factor(t - 1) == pytest.approx(0.1 / 2 * (math.cos(math.pi * (t - 1) / 50) + 1))
    assert SnapshotWeights(1, 4).training(paper).warmup == paper.mode.warmup
    fge = FgeWeights(2).training(paper)
    assert fge.epochs == 4
    # In the authors' own counting a cycle begins at the peak and is cut in the middle, where the network is taken.
    high, low = 5e-2, 5e-4
    for epoch, t in enumerate((0.75, 1.0, 0.25, 0.5)):
        rate = (1 - 2 * t) * high + 2 * t * low if t <= 0.5 else (2 - 2 * t) * low + (2 * t - 1) * high
        assert fge.lr * fge.factor(epoch) == pytest.approx(rate)
    assert [FgeWeights(1).training(recipe(n)).epochs for n in (1, 20, 33, 200)] == [2, 2, 3, 4]


def test_what_the_chains_cost_to_train(run: Run) -> None:
    """All snapshots together one network, cycles of unequal lengths; FGE its mode and two epochs for each cycle."""
    snapshots = [SnapshotMember(k, 2) for k in (1, 2)]
    assert [SnapshotWeights(k, 2).epochs(run.recipe) for k in (1, 2)] == [1, 2]
    assert base_epochs(snapshots, run.context) == base_epochs(snapshots[1:], run.context) == 3
    assert base_epochs([ModeMember(0), FgeMember(1)], run.context) == 3 + 2
    assert base_epochs([FgeMember(2)], run.context) == 3 + 4
    assert base_epochs([SwaMember(0)], run.context) == 3
    assert sum(SnapshotWeights(k, 4).epochs(recipe(21)) for k in (1, 2, 3, 4)) == 21


def test_their_rows_and_names() -> None:
    usual = replace(recipe(20), methods=("fge", "snapshot"))
    rows = {plan.name: [member.name for member in plan.members] for plan in row_plans(usual)[-6:]}
    assert rows == {
        "snapshot x2": ["snapshot-3-of-4", "snapshot-4-of-4"],
        "snapshot x3": ["snapshot-2-of-4", "snapshot-3-of-4", "snapshot-4-of-4"],
        "snapshot x4": [f"snapshot-{k}-of-4" for k in (1, 2, 3, 4)],
        "FGE x2": ["mode-0", "fge-1"],
        "FGE x3": ["mode-0", "fge-1", "fge-2"],
        "FGE x4": ["mode-0", "fge-1", "fge-2", "fge-3"],
    }
    assert all(parse_member(name).name == name for names in rows.values() for name in names)
    for name in ("snapshot-5-of-4", "snapshot-0-of-4", "fge-0"):
        with pytest.raises(ModebridgeError, match="such as mode-0"):
            parse_member(name)
    with pytest.raises(ModebridgeError, match="at least 1 for each of the 2 cycles"):
        SnapshotWeights(2, 2).training(recipe(1))


def test_their_networks_export_as_modes(run: Run) -> None:
    assert run.folder is not None
    path = Path(run.folder.path)
    for names in (["swa-0"], ["snapshot-1-of-2", "snapshot-2-of-2"], ["mode-0", "fge-1", "fge-2"]):
        ensemble, beside = ensemble_of(path, names)
        assert beside["names"] == names
        assert [mode.id for mode in map(Mode.from_module, ensemble.bases)] == [
            run.load(parse_member(name)).mode.id for name in names
        ]
        assert beside["scores"]["relative_flops"] == len(names)


def test_all_members_predict_in_one_pass_after_the_chains(run: Run) -> None:
    """Logits wait for the last network of every chain: a network then runs once for all of them."""
    plan = run.plan([Logits(member) for member in (ModeMember(0), *map(parse_member, NAMES))])
    folders = [wave[0].artefact.folder for wave in plan.waves()]
    assert folders.count("logits") == 1
    assert folders[-1] == "logits"
    assert (folders.count("snapshots"), folders.count("fge")) == (2, 2)
