"""From a run folder to an ensemble, with its stored weights and scores: to export, or as a folder with a model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from modebridge.baselines import MeanOfMembers
from modebridge.bridges import Bridge
from modebridge.deploy import Calibration
from modebridge.ensembles import ALL, AnswerRule, Ensemble, SetRule
from modebridge.errors import ModebridgeError, near
from modebridge.files import Card, describe, read_folder, save
from modebridge.files.atomic import FILES
from modebridge.members import Loaded, Member, Setting, identity, parse_member, row_plans
from modebridge.modes import Mode
from modebridge.recipes import Recipe
from modebridge.report import markdown_table
from modebridge.runs.plan import existing, find_recipe_of, setting_for
from modebridge.runs.results import read_answers
from modebridge.runs.store import RunFolder
from modebridge.scoring import LogitTable, Row, Scored, advise

BUDGET = 1.2
"""The budget for the recommended ensemble if no members are named: 1.2 networks."""
SCORES = ("accuracy", "nll", "ece", "brier", "raw_nll", "deferred_share", "relative_flops", "relative_params")
"""What an exported file says about itself, with its default settings."""
DATA = {
    "digits": ("UCI hand-written digits", ""),
    "cifar10": ("CIFAR-10", "uoft-cs/cifar10"),
    "cifar100": ("CIFAR-100", "uoft-cs/cifar100"),
    "tin200": ("Tiny ImageNet", "zh-plus/tiny-imagenet"),
    "in1k": ("ImageNet", "ILSVRC/imagenet-1k"),
}
"""The title of each named set, and its name on the hub where it has one."""


def ensemble_of(
    folder: Path | str | RunFolder,
    members: Sequence[str] | None = None,
    *,
    average_cost: float | None = None,
    threshold: float | None = None,
    coverage: float | None = None,
    risk: float | None = None,
) -> tuple[Ensemble, dict[str, Any]]:
    """Build an ensemble from a run folder, calibrated on the stored validation logits; needs no data set.

    Args:
        folder: the folder of a finished run.
        members: names of members, such as `mode-0` and `I-0-1-small`, or of rows of the table; None uses what `advise`
            recommends for 1.2 networks.
        average_cost: average cost of a cascade, in networks: its threshold is chosen on the validation split.
        threshold: threshold of a cascade, used instead of `average_cost`.
        coverage: coverage of sets of classes; None for no sets.
        risk: largest share of wrong answers, to abstain from others; None for no such rule.

    Returns:
        The ensemble, and what `export` and `share_run` need to know about it: example, names, classes, scores, about,
        fitted (temperatures and rules), unit, and the threshold of a cascade (None for those that do not apply),
        setting and answers.
    """
    run = folder if isinstance(folder, RunFolder) else existing(folder, writes=False)
    recipe, seed = find_recipe_of(run)
    answers = read_answers(run)
    rows = {row.name: row.members for row in row_plans(recipe) if row.average_cost is None}
    chosen = members or advise(read_answers(run, planned=True), BUDGET).chosen.members
    named = [name for row in chosen for name in rows.get(row, [row])]
    names = _ordered(answers, named)
    if (average_cost is not None or threshold is not None) and len(names) < 2:
        raise ModebridgeError(
            f"Expected at least two members for a cascade, but got only {names[0]}"
            f"{'' if members else ', which `modebridge advise` recommends'}; name the members for uncertain images "
            "too, as in --members mode-0,mode-1."
        )
    if average_cost is not None:
        threshold = answers.threshold(names, average_cost)
        if threshold >= ALL:
            raise ModebridgeError(
                f"Expected an average cost below that of all members, x{answers.cost(names).relative_flops:g}, but got "
                f"{average_cost:g}; leave it out to use all of them for every image."
            )
    # With the highest threshold all members answer every image.
    threshold = threshold if threshold is not None and threshold < ALL else None
    setting = setting_for(recipe, seed, run)
    example = _example(run, setting)
    setting.net  # noqa: B018 - raises the network's own error
    loaded = {name: _loaded(run, setting, parse_member(name)) for name in names}
    ensemble = _assembled(setting, loaded)
    classes, scored = list(setting.facts.class_names), answers.score(names, threshold=threshold).to_dict()
    known = answers.calibrated(names, "valid", threshold=threshold), answers.valid_labels
    fitted = Calibration(
        answers.temperature(names[:1]),
        answers.temperature(names),
        None if coverage is None else SetRule.fit(*known, coverage),
        None if risk is None else AnswerRule.fit(*known, risk),
    )
    ensemble.temperature.fill_(fitted.full)
    ensemble._fitted.fill_(True)
    return ensemble, {
        "example": example,
        "names": names,
        "classes": None if classes == [str(k) for k in range(len(classes))] else classes,
        "scores": {"split": "test", "images": scored["n"], **{key: scored[key] for key in SCORES}},
        "about": f"{recipe.name}, seed {seed}{': ' if recipe.about else ''}{recipe.about}",
        "fitted": fitted,
        "threshold": threshold,
        # A network of another kind cannot be its own unit: costs are relative to the recipe's network.
        "unit": None if all(isinstance(one, Mode | Bridge) for one in loaded.values()) else setting.base_cost,
        "pixels": setting.facts.pixels,
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
    for name in names:
        for source in answers.costs[name].reads:
            if source not in networks:
                raise ModebridgeError(
                    f"Expected {source} to be a member, because {name} reads it, but it is not; add it."
                )
    return [*networks, *(name for name in names if name not in networks)]


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
    return Ensemble(setting.net, modes, [one for one in loaded.values() if isinstance(one, Bridge)])


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


def _example(run: RunFolder, setting: Setting) -> Tensor:
    """The real images that the folder stores for its page, else noise of their shape."""
    i, j = setting.recipe.curves()[0]
    images = run.read(f"samples/{i}-{j}")[0].get("images")
    noise = setting.example
    assert isinstance(noise, Tensor)
    return images.float() if images is not None and images.shape[1:] == noise.shape[1:] else noise


@dataclass(frozen=True)
class SharedFolder:
    """A folder written by `share_run`, its members, and their scores on the test split."""

    path: Path
    names: tuple[str, ...]
    scores: Scored
    needs_net: bool
    """Whether users must pass the network, because no library has it."""


def share_run(
    run: RunFolder, path: Path, members: Sequence[str] | None = None, *, license: str = "", place: str = ""
) -> SharedFolder:
    """Write members of a finished run as a folder for `modebridge.load` and the hub; needs no data set.

    Args:
        run: the run folder.
        path: the folder to write.
        members: names of members; None takes what `advise` recommends for a budget of 1.2.
        license: license of the weights, as an identifier of the hub.
        place: future name on the hub, for the card.
    """
    ensemble, notes = ensemble_of(run, members)
    setting, names = notes["setting"], tuple(notes["names"])
    if notes["unit"] is not None:
        raise ModebridgeError(
            f"Expected modes, students and bridges to share, but got '{names[0]}', whose network is built inside the "
            "run; use modebridge export for one file of it."
        )
    recipe, answers = setting.recipe, notes["answers"]
    plans = row_plans(recipe)
    rows = [row for row in plans if row.family == plans[0].family and set(row.members) <= set(answers.test)]
    *ensembles, this = answers.score_rows([*rows, Row("**this**", names, "shared")])
    scored, image, (low, high) = this.scores, setting.facts.image, setting.facts.pixels
    title, known = DATA.get(recipe.data.name, ("custom data", ""))
    card = Card(
        about=f"An ensemble of {' + '.join(f'`{name}`' for name in names)}, trained on {title}.",
        license=license,
        task="image-classification" if image is not None and len(image) == 3 else "",
        datasets=(known,) if known else (),
        data=title,
        metrics={"accuracy": scored.accuracy, "nll": scored.nll, "ece": scored.ece, "brier_score": scored.brier},
        sections={
            "Scores": f"{markdown_table([this, *ensembles])}\n\nTest split of {title}, {scored.n:,} images; calibrated "
            f"by one temperature per row, fitted on {len(answers.valid_labels):,} validation images. DE-m: deep "
            "ensemble of m networks. The scores hold for images of this kind only.",
            "Training": f"Recipe `{recipe.name}`, seed {setting.seed}. The network takes floats from {low:.3g} to "
            f"{high:.3g}.",
        },
        place=place,
    )
    written = save(ensemble, path, card=card, net=_stored_name(ensemble, setting))
    return SharedFolder(written, names, scored, read_folder(written).config["net"] is None)


def _stored_name(ensemble: Ensemble, setting: Setting) -> str | None:
    """The name that builds the network, if there is one; None lets `save` detect it."""
    name = setting.network.shared_name
    try:
        return name if name is not None and describe(ensemble.bases[0], name) is not None else None
    except ModebridgeError:  # built with weights or settings that no name describes
        return None
