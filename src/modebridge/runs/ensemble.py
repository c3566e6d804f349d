"""From a run folder to an ensemble that can be exported, with its stored weights, temperatures and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from modebridge.baselines import MeanOfMembers
from modebridge.bridges import Bridge
from modebridge.deploy import Temperatures
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError, near
from modebridge.files.atomic import FILES
from modebridge.members import Loaded, Member, Setting, identity, parse_member
from modebridge.modes import Mode
from modebridge.recipes import Recipe
from modebridge.runs.plan import existing, find_recipe_of, setting_for
from modebridge.runs.results import read_answers
from modebridge.runs.store import RunFolder
from modebridge.scoring import ALL, LogitTable, advise

BUDGET = 1.2
"""The budget for the recommended ensemble if no members are named: 1.2 networks."""


def ensemble_of(
    folder: Path | str | RunFolder,
    members: Sequence[str] | None = None,
    *,
    average_cost: float | None = None,
    threshold: float | None = None,
) -> tuple[Ensemble, dict[str, Any]]:
    """Build an ensemble from a run folder, calibrated on the stored validation logits; needs no data set.

    Args:
        folder: the folder of a finished run.
        members: names of members, such as `mode-0` and `I-0-1-small`; None uses what `advise` recommends for 1.2
            networks.
        average_cost: average cost of a cascade, in networks: its threshold is chosen on the validation split.
        threshold: threshold of a cascade, used instead of `average_cost`.

    Returns:
        The ensemble, and what `export` and `share_run` need to know about it: example, names, classes, scores, about,
        temperatures, unit, and the threshold of a cascade (None for those that do not apply), setting and answers.
    """
    run = folder if isinstance(folder, RunFolder) else existing(folder, writes=False)
    recipe, seed = find_recipe_of(run)
    answers = read_answers(run)
    named = bool(members)
    if not members:
        members = advise(answers, BUDGET).chosen.members
    names = _ordered(answers, members)
    if average_cost is not None:
        if named and len(names) < 2 and average_cost >= 1:
            raise ModebridgeError(
                f"Expected at least two members for a cascade of average cost {average_cost:g}, but got only "
                f"{names[0]}; name the members for uncertain images too, or omit the average cost."
            )
        threshold = answers.threshold(names, average_cost)
    # A budget that covers all images needs no threshold.
    threshold = threshold if threshold is not None and threshold < ALL else None
    setting = setting_for(recipe, seed, run)
    example = _example(run, setting)
    setting.net  # noqa: B018 - raises the network's own error
    loaded = {name: _loaded(run, setting, parse_member(name)) for name in names}
    ensemble = _assembled(setting, loaded)
    classes = list(setting.facts.class_names)
    temperatures = Temperatures(answers.temperature(names[:1]), answers.temperature(names))
    ensemble.temperature.fill_(temperatures.full)
    ensemble._fitted.fill_(True)
    return ensemble, {
        "example": example,
        "names": names,
        "classes": None if classes == [str(k) for k in range(len(classes))] else classes,
        "scores": _scores(answers, names, threshold),
        "about": f"{recipe.name}, seed {seed}: {recipe.about}",
        "temperatures": temperatures,
        "threshold": threshold,
        # A network of another kind cannot be its own unit: costs are relative to the recipe's network.
        "unit": None if all(isinstance(one, Mode | Bridge) for one in loaded.values()) else setting.base_cost,
        "setting": setting,
        "answers": answers,
    }


def absent_weights(folder: RunFolder, recipe: Recipe, members: Sequence[str]) -> list[str]:
    """The places of what is needed to export members and does not exist; `ensemble_of` verifies what exists."""
    needed = dict.fromkeys(one.place for name in members for one in parse_member(name).nodes(recipe))
    return [place for place in needed if not all((folder.path / place / file).is_file() for file in FILES)]


def _ordered(answers: LogitTable, members: Sequence[str]) -> list[str]:
    """Networks first, each group in the given order: the first one alone predicts the images it is confident of."""
    names = list(dict.fromkeys(members))
    for name in names:
        if name not in answers.test:
            raise ModebridgeError(f"Expected a member of this run, but got '{name}'; {near(name, answers.test)}")
        if not answers.costs[name].usable:
            raise ModebridgeError(
                f"Expected modes and bridges to export, but got '{name}'; a network on a curve is only a bridge target."
            )
    networks = [name for name in names if not answers.costs[name].reads]
    others = [name for name in names if name not in networks]
    for name in others:
        for source in answers.costs[name].reads:
            if source not in networks:
                raise ModebridgeError(
                    f"Expected {source} to be a member, because {name} reads it, but it is not; add it."
                )
    if not networks:
        raise ModebridgeError("Expected at least one mode among the members, but got none; add mode-0.")
    return [*networks, *others]


def _assembled(setting: Setting, loaded: Mapping[str, Loaded]) -> Ensemble:
    """Modes and bridges as one ensemble; a member with a different network alone, as its only mode."""
    for name, one in loaded.items():
        if isinstance(one, Mode | Bridge):
            continue
        if len(loaded) > 1:
            raise ModebridgeError(
                f"Expected '{name}' to be exported alone, because it is not one plain pass of the recipe's network, "
                f"but got {', '.join(loaded)}; export it alone."
            )
        module = MeanOfMembers(one)
        return Ensemble(module, [Mode.from_module(module)])
    modes = [one for one in loaded.values() if isinstance(one, Mode)]
    bridges = [one for one in loaded.values() if isinstance(one, Bridge)]
    return Ensemble(setting.net, modes, bridges)


def _loaded(run: RunFolder, setting: Setting, member: Member) -> Loaded:
    """A member with the weights that its stored logits come from."""
    tensors = {node.place: run.read(node.place)[0] for node in member.nodes(setting.recipe)}
    loaded = None
    # Weights of another network, put there by hand, count as missing.
    with suppress(ModebridgeError, RuntimeError, KeyError):
        loaded = member.load(setting, tensors) if all(tensors.values()) else None
    if loaded is None or identity(member, loaded) != run.meta(f"logits/{member.name}").get("id"):
        reasons = [f"{place}: {run.damage[place]}" for place in tensors if place in run.damage]
        detail = f" ({'; '.join(reasons)})" if reasons else ""
        raise ModebridgeError(
            f"Expected the weights of {member.name} in '{run.path}' to be those of the stored predictions, but they "
            f"are missing or have changed{detail}; finish the run: modebridge run --out {run.path}."
        )
    return loaded


def _scores(answers: LogitTable, names: Sequence[str], threshold: float | None) -> dict[str, Any]:
    """The scores of the exported file with its default settings."""
    scored = answers.score(names, threshold=threshold)
    keys = ("accuracy", "nll", "ece", "brier", "raw_nll", "deferred_share")
    cost = {"relative_flops": scored.cost.relative_flops, "relative_params": scored.cost.relative_params}
    return {"split": "test", "images": scored.n, **{key: getattr(scored, key) for key in keys}, **cost}


def _example(run: RunFolder, setting: Setting) -> Tensor:
    """The real images that the folder stores for its page, else noise of their shape."""
    i, j = setting.recipe.curves()[0]
    images = run.read(f"samples/{i}-{j}")[0].get("images")
    noise = setting.example
    assert isinstance(noise, Tensor)
    return images.float() if images is not None and images.shape[1:] == noise.shape[1:] else noise
