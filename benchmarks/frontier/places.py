"""Modes for the comparison: trained and cached for digits, loaded from files for CIFAR-10."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from frontier.scene import Scene
from frontier.training import Bench
from holds.common import Hold, WholeBatches, cifar10_setting, cifar10_splits
from modebridge import Mode, fit_curves, seeds
from modebridge.curves import BezierCurve
from modebridge.data import Loader, load_modes
from modebridge.errors import ModebridgeError
from modebridge.members import DistilledMember
from modebridge.nets import ResNet
from modebridge.recipes import find_recipe
from modebridge.runs import Run, RunFolder
from modebridge.training import Report
from modebridge.types import Batches

__all__ = ["OTHERS", "cifar10", "digits", "shifted"]

OTHERS = (1, 2, 3)
"""The ends of the curves that start at mode 0."""


def digits(seed: int, cache: Path, epochs: int, report: Callable[[str], Report | None]) -> Bench:
    """The recipe digits: four modes, three curves and the student of a seed, cached in a run folder.

    Artefacts in the run folder are reused only if they were trained with the same settings.

    Args:
        seed: seed of everything.
        cache: folder of the run folders.
        epochs: epochs of bridges; 0 for the recipe's.
        report: returns the epoch callback of a regime.
    """
    recipe = find_recipe("digits")
    run = Run(recipe, seed=seed, folder=RunFolder(cache / "digits" / str(seed)))
    context = run.context
    assert isinstance(context.net, ResNet)
    assert isinstance(context.example, torch.Tensor)
    curves = {j: run.curve(0, j) for j in OTHERS}
    scene = Scene(
        context.net,
        [curves[1].start, *(curve.end for curve in curves.values())],
        curves,
        context.example,
        {"small": recipe.small, "medium": recipe.medium},
        seed,
    )
    (student,) = run.load(DistilledMember(0)).networks.values()
    return Bench(
        scene,
        lambda shift: shifted(context.data.train("bridges", bridges=True), shift),
        {"valid": context.data.valid(), "test": context.data.test()},
        context.data.valid(),
        {split: context.data.labels(split) for split in ("valid", "test")},  # type: ignore[arg-type]
        replace(recipe.bridge, epochs=epochs or recipe.bridge.epochs, seed=context.seed_of("bridges")),
        context.engine,
        student,
        report,
    )


def shifted(batches: Batches, shift: int) -> Batches:
    """The images of a loader, shifted at random by up to so many pixels more."""
    if shift:
        assert isinstance(batches, Loader)
        batches.pad += shift
    return batches


def cifar10(
    hold: Hold,
    *,
    modes: Path | None,
    data: str,
    pins: Path | None,
    curve_epochs: int,
    student: Path | None,
    epochs: int,
    seed: int,
    tiny: bool,
    random: bool = False,
) -> Bench:
    """The recipe cifar10 on saved modes.

    Args:
        hold: the clock, and the folder for pins.
        modes: folder with the weights of four modes; None for random ones in a dry or warm-up run.
        data: folder of the data set; "-" for random images.
        pins: folder with the pins of the curves (weights-pin-0-J.safetensors).
        curve_epochs: epochs of curves if there are no pins; 0 for no curves.
        student: folder with the logits of the student of DE-4 (weights.safetensors with valid and test).
        epochs: epochs of bridges; 0 for the recipe's.
        seed: seed of the bridges and of the order of images.
        tiny: use a small network and few images.
        random: use random modes if no folder is given, for compilation and timing.
    """
    engine, recipe, spec, batch = cifar10_setting(tiny=tiny)
    splits = cifar10_splits(data, engine.device, 20 if tiny else 45_000)
    net = ResNet(spec)
    if modes is None and not (tiny or random):
        raise ModebridgeError("Expected a folder with four modes, but got none; pass --modes.")
    drawn = [Mode.from_module(ResNet(spec, torch.Generator().manual_seed(k))) for k in range(4)]
    four = load_modes(net, modes)[:4] if modes is not None else drawn
    plain = {split: Loader(splits[split], 500) for split in ("valid", "test")}
    valid = Loader(splits["valid"], 20 if tiny else 2500)
    hold.say(f"read {len(four)} modes and {len(splits['train'])} training images; {engine}")

    def fed(*names: str | int, shift: int = 0) -> WholeBatches:
        order = seeds.seed_for(seed, "frontier", *names)
        return WholeBatches(Loader(splits["train"], batch, shuffle=True, seed=order, pad=4 + shift, flip=True))

    saved = {j: (pins or hold.out) / f"weights-pin-0-{j}.safetensors" for j in OTHERS}
    if pins is None and curve_epochs:
        trained = fit_curves(
            net,
            [(four[0], four[j]) for j in OTHERS],
            [fed("curve", j) for j in OTHERS],
            config=replace(recipe.curve, epochs=curve_epochs),
            pin_start=recipe.pin_start,
            valid=valid,
            engine=engine,
            report=hold.report("curves"),
        )
        for j, curve in zip(OTHERS, trained, strict=True):
            save_file({name: tensor.half().contiguous() for name, tensor in curve.pins[0].items()}, saved[j])
    curves = {}
    if pins is not None or curve_epochs:
        curves = {
            j: BezierCurve(four[0], four[j], ({key: t.float() for key, t in load_file(saved[j]).items()},), {})
            for j in OTHERS
        }
    return Bench(
        Scene(net, four, curves, torch.rand(2, *spec.image), {"small": recipe.small, "medium": recipe.medium}, seed),
        lambda shift: fed("bridges", shift=shift),
        plain,
        valid,
        {split: splits[split].labels.cpu().clone() for split in ("valid", "test")},
        replace(recipe.bridge, epochs=epochs or recipe.bridge.epochs, seed=seeds.seed_for(seed, "bridges")),
        engine,
        None if student is None else {k: t.float() for k, t in load_file(student / "weights.safetensors").items()},
        lambda regime: _brief(hold.report(regime)),
    )


def _brief(report: Report) -> Report:
    """Report the mean loss of all bridges, since a pass has dozens."""
    return lambda epoch: report(replace(epoch, losses={"mean": sum(epoch.losses.values()) / len(epoch.losses)}))
