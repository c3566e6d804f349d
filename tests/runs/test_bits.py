"""A run gives the weights and logits that it always gave: to the last bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from modebridge import Mode, fit_curve, seeds
from modebridge.bridges import plan_bridge
from modebridge.data import Loader, noisy_digits
from modebridge.members import parse_member
from modebridge.nets import ResNet, spec_of
from modebridge.runs import Run, RunFolder, run_recipe
from modebridge.training import side_by_side
from tests.plans import fit_bridges, fit_mode
from tests.runs.small import tiny

RECORDED = json.loads((Path(__file__).parents[1] / "references" / "tiny_run.json").read_text())


def test_the_bits_that_were_recorded_before_members_and_runs_were_rebuilt(tmp_path: Path) -> None:
    here = torch.__version__, torch.backends.cpu.get_cpu_capability()
    if here != (RECORDED["torch"], RECORDED["cpu"]):
        pytest.skip(f"recorded with torch {RECORDED['torch']} on {RECORDED['cpu']}: elsewhere the bits are others")
    folder = RunFolder(tmp_path)
    run_recipe(tiny(), folder=folder)
    assert {place: folder.meta(place).get("bits") for place in RECORDED["hashes"]} == RECORDED["hashes"]


def test_a_run_is_the_librarys_functions_with_seeds_by_name() -> None:
    """The same by hand, on whatever machine: the graph adds nothing to what the functions do."""
    recipe, seed = tiny(), 3
    images, spec = noisy_digits(recipe.data.noise), spec_of("digits", "bn", 10)
    train, valid = images.part(0, 40), Loader(images.part(40, 70), 256)

    def batches(*names: str | int) -> Loader:
        return Loader(train, 20, shuffle=True, seed=seeds.seed_for(seed, *names, "batches"))

    def by_hand() -> tuple[Mode, Mode, dict[str, torch.Tensor]]:
        modes = [
            fit_mode(
                ResNet(spec, seeds.generator(seed, "mode", k)),
                batches("mode", k),
                config=replace(recipe.training("mode"), seed=seeds.seed_for(seed, "mode", k)),
                valid=valid,
            )
            for k in (0, 1)
        ]
        net = ResNet(spec, seeds.generator(seed, "net"))
        config = replace(recipe.training("curve"), seed=seeds.seed_for(seed, "curve", 0, 1))
        curve = fit_curve(net, *modes, batches("curve", 0, 1), config=config, valid=valid)
        slim, own = recipe.slim("small"), seeds.seed_for(seed, "I-0-1")
        plan = plan_bridge(net, curve, train.images[:2], slim=slim, name="I-0-1-small", seed=own)
        fitted = fit_bridges(
            net,
            {"I-0-1-small": plan},
            batches("bridges"),
            mixup=recipe.mixup,
            config=replace(recipe.training("bridge"), seed=seeds.seed_for(seed, "bridges")),
            valid=valid,
        )
        return modes[1], curve.at(0.5), fitted["I-0-1-small"].state_dict()

    ((mode, middle, weights),) = side_by_side([by_hand])  # one core, as in a run
    run = Run(recipe, seed=seed)
    assert run.mode(1).id == mode.id
    assert run.curve(0, 1).at(0.5).id == middle.id
    (bridge,) = [run.load(parse_member("I-0-1-small")).bridge]
    assert all(torch.equal(tensor, weights[name]) for name, tensor in bridge.state_dict().items())
