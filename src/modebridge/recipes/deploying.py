"""From a run folder to an ensemble that can be exported: weights, temperatures and scores as they were kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modebridge import trees
from modebridge.batches import check_images
from modebridge.bridges import Bridge, body_like, last_blocks_tap
from modebridge.data.sets import CLASS_NAMES
from modebridge.ensembles import BridgedEnsemble
from modebridge.errors import ModebridgeError, near
from modebridge.evaluate import Answers, advise
from modebridge.modes import Mode
from modebridge.nets import ResNet, skeleton
from modebridge.recipes.config import Recipe
from modebridge.recipes.costs import kind_of_body, spec_for
from modebridge.recipes.elastic import temperatures_of
from modebridge.recipes.folder import RunFolder, key_of
from modebridge.recipes.kept import find_recipe_of
from modebridge.recipes.members import Member
from modebridge.recipes.reading import read_answers
from modebridge.recipes.run_data import RunData
from modebridge.types import Batches

__all__ = ["ensemble_of", "some_images"]

BUDGET = 1.2
"""What is advised where no members are named: one network and a fifth."""


def ensemble_of(
    folder: Path | str | RunFolder, members: Sequence[str] | None = None
) -> tuple[BridgedEnsemble, dict[str, Any]]:
    """An ensemble out of a run folder, calibrated on the kept validation answers; needs no data set.

    Args:
        folder: of a finished run.
        members: their names, as `mode-0` and `I-0-1-small`; None takes what `advise` recommends for 1.2 networks.

    Returns:
        The ensemble, and what `export` takes beside it by name: example, names, classes, scores, about, temperatures.
    """
    run = folder if isinstance(folder, RunFolder) else RunFolder(folder, writes=False)
    recipe, seed = find_recipe_of(run)
    answers = read_answers(run)
    names = _ordered(answers, members)
    chosen = [Member.parse(name) for name in names]
    net = ResNet(spec_for(recipe))
    modes = {member.i: _mode(run, net, member) for member in chosen if member.kind == "mode"}
    bridges = [_bridge(run, recipe, net, member, modes) for member in chosen if member.is_bridge]
    ensemble = BridgedEnsemble(net, list(modes.values()), bridges)
    temperatures = temperatures_of(answers, names)
    ensemble.temperature.fill_(temperatures.by_bridges[-1])
    ensemble._fitted.fill_(True)
    return ensemble, {
        "example": _example(run, recipe, net),
        "names": names,
        "classes": CLASS_NAMES.get(recipe.data.name),
        "scores": _scores(answers, names),
        "about": f"{recipe.name}, seed {seed}: {recipe.about}",
        "temperatures": temperatures,
    }


def some_images(recipe: Recipe, data: Path | None, seed: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Up to 256 training images to calibrate eight bits on, and up to 2,000 validation images with their labels."""
    run_data = RunData(recipe, seed, data)

    def joined(batches: Batches) -> tuple[Tensor, Tensor]:
        images, labels = zip(*[check_images(batch, "the data") for batch in batches], strict=True)
        return torch.cat(images), torch.cat(labels)

    return joined(run_data.plain_train(256))[0], joined(run_data.valid(2000))


def _ordered(answers: Answers, members: Sequence[str] | None) -> list[str]:
    """Modes first, each group in the order given: the first mode is the one that answers alone where it is sure."""
    names = list(dict.fromkeys(members)) if members else list(advise(answers, BUDGET).chosen.members)
    for name in names:
        if name not in answers.test:
            raise ModebridgeError(f"Expected a member of this run, but got '{name}'; {near(name, answers.test)}.")
        if Member.parse(name).kind == "curve":
            raise ModebridgeError(
                f"Expected modes and bridges to export, but got '{name}'; a network on a curve only teaches bridges."
            )
    modes = [name for name in names if Member.parse(name).kind == "mode"]
    bridges = [name for name in names if name not in modes]
    for name in bridges:
        for source in answers.costs[name].reads:
            if source not in modes:
                raise ModebridgeError(
                    f"Expected {source} to be a member, because {name} reads it, but it is not; add it."
                )
    if not modes:
        raise ModebridgeError("Expected at least one mode among the members, but got none; add mode-0.")
    return [*modes, *bridges]


def _mode(run: RunFolder, net: ResNet, member: Member) -> Mode:
    # Aligned modes are what a run asks and bridges, where it aligns them.
    for kind in ("aligned", "modes"):
        tensors, _ = run.read(kind, str(member.i))
        found = _fitting(net, tensors)
        if found is not None and found.id == run.meta("logits", member.name).get("id"):
            return found
    raise _other(run, member, [f"aligned/{member.i}", f"modes/{member.i}"])


def _fitting(net: ResNet, tensors: dict[str, Tensor]) -> Mode | None:
    try:
        return Mode.from_state_dict(net, tensors) if tensors else None
    except ModebridgeError:  # of another network, by hand: as good as missing
        return None


def _bridge(run: RunFolder, recipe: Recipe, net: ResNet, member: Member, modes: dict[int, Mode]) -> Bridge:
    tensors, _ = run.read("bridges", member.name)
    body = body_like(net.spec, kind_of_body(member), recipe.slim(member.size))
    r = None if member.kind == "labels" else member.r
    made = Bridge(body, [modes[k] for k in member.reads], last_blocks_tap(net.spec), r, member.name)
    # In the order of memory that training leaves, which files do not know of: answers are hashed by content alone.
    bridge = skeleton(made)
    assert isinstance(bridge, Bridge)
    shapes = {key: tensor.shape for key, tensor in bridge.state_dict().items()}
    if {key: tensor.shape for key, tensor in tensors.items()} != shapes:
        raise _other(run, member, [f"bridges/{member.name}"])
    bridge.load_state_dict(tensors)
    if key_of(trees.fingerprint(bridge.state_dict()), bridge.reads) != run.meta("logits", member.name).get("id"):
        raise _other(run, member, [f"bridges/{member.name}"])
    return bridge


def _other(run: RunFolder, member: Member, places: Sequence[str]) -> ModebridgeError:
    reasons = [f"{place}: {run.damage[place]}" for place in places if place in run.damage]
    said = f" ({'; '.join(reasons)})" if reasons else ""
    return ModebridgeError(
        f"Expected the weights of {member.name} in '{run.path}' to be those whose answers are kept, but they are "
        f"missing or have changed{said}; finish the run: modebridge run --out "
        f"{run.path}."
    )


def _scores(answers: Answers, names: Sequence[str]) -> dict[str, Any]:
    found = answers.score(names)
    keys = ("accuracy", "nll", "ece", "brier", "raw_nll", "relative_flops", "relative_params")
    return {"split": "test", "images": len(answers.test_labels), **{key: getattr(found, key) for key in keys}}


def _example(run: RunFolder, recipe: Recipe, net: ResNet) -> Tensor:
    """The real images that the folder keeps for its page, else noise of their shape."""
    i, j = recipe.curves()[0]
    images = run.read("samples", f"{i}-{j}")[0].get("images")
    if images is not None and tuple(images.shape[1:]) == net.spec.image:
        return images.float()
    return torch.rand(4, *net.spec.image, generator=torch.Generator().manual_seed(0))
