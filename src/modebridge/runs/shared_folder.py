"""From a run folder to a folder that can be shared: weights, architecture, and a model card with the run's scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modebridge.ensembles import Ensemble, Mean
from modebridge.errors import ModebridgeError, plural
from modebridge.files import Card, describe, read_folder, save
from modebridge.members import Setting, row_plans
from modebridge.recipes import DataFacts, Recipe
from modebridge.runs.assemble import ensemble_of
from modebridge.runs.plan import facts_for, find_recipe_of, setting_for
from modebridge.runs.results import read_answers
from modebridge.runs.store import RunFolder
from modebridge.scoring import LogitTable, Scored, dee

__all__ = ["SharedFolder", "share_run"]

DATA = {
    "digits": ("UCI hand-written digits", ""),
    "cifar10": ("CIFAR-10", "uoft-cs/cifar10"),
    "cifar100": ("CIFAR-100", "uoft-cs/cifar100"),
    "tin200": ("Tiny ImageNet", "zh-plus/tiny-imagenet"),
    "in1k": ("ImageNet", "ILSVRC/imagenet-1k"),
}
"""The title of each named set, and its name on the hub where it has one."""


@dataclass(frozen=True)
class SharedFolder:
    """A folder written by `share_run`.

    Args:
        path: the folder.
        names: names of the members.
        scores: scores of the ensemble on the test split.
        needs_net: whether users must pass the network, because no library has it.
    """

    path: Path
    names: tuple[str, ...]
    scores: Scored
    needs_net: bool


def share_run(
    run: RunFolder,
    path: Path,
    members: Sequence[str] | None = None,
    *,
    mean: Mean = "probability",
    license: str = "",
    datasets: Sequence[str] = (),
    place: str = "",
) -> SharedFolder:
    """Write members of a finished run as a folder for `modebridge.load` and the hub; needs no data set.

    Args:
        run: the run folder.
        path: the folder to write.
        members: names of members; None takes what `advise` recommends for a budget of 1.2.
        mean: how members are averaged.
        license: license of the weights, as an identifier of the hub.
        datasets: names of the data sets on the hub; the recipe's own by default.
        place: future name on the hub, for the card.
    """
    ensemble, notes = ensemble_of(run, members, mean=mean, cascades=False)
    if notes["unit"] is not None:
        raise ModebridgeError(
            f"Expected modes, students and bridges to share, but got '{notes['names'][0]}', whose network is built "
            "inside the run; use modebridge export for one file of it."
        )
    recipe, seed = find_recipe_of(run)
    facts, setting, answers = facts_for(recipe, run), setting_for(recipe, seed, run), read_answers(run)
    combined = answers.score(notes["names"], intervals=True)
    title, known = DATA.get(recipe.data.name, ("custom data", ""))
    card = Card(
        about=_about(ensemble, combined, title),
        license=license,
        task="image-classification" if facts.image is not None and len(facts.image) == 3 else "",
        datasets=tuple(datasets) or ((known,) if known else ()),
        data=title,
        metrics={
            "accuracy": combined.accuracy,
            "nll": combined.nll,
            "ece": combined.ece,
            "brier_score": combined.brier,
        },
        sections={
            "What is in it": _members_section(ensemble, notes["names"]),
            "Scores": _scores_section(recipe, answers, combined),
            "Data": _data_section(recipe, facts, title),
            "Cost": _cost_section(combined, setting),
            "Training": _origin_section(recipe, seed),
        },
        place=place,
    )
    net = _stored_name(ensemble, setting)
    written = save(ensemble, path, card=card, net=net)
    needs_net = read_folder(written).config["net"] is None
    return SharedFolder(written, tuple(notes["names"]), combined, needs_net)


def _stored_name(ensemble: Ensemble, setting: Setting) -> str | None:
    """The name that builds the network, if there is one; None lets `save` detect it."""
    name = setting.network.shared_name
    try:
        return name if name is not None and describe(ensemble.bases[0], name) is not None else None
    except ModebridgeError:  # built with weights or settings that no name describes
        return None


def _about(ensemble: Ensemble, combined: Scored, title: str) -> str:
    networks, bridges = len(ensemble.bases), len(ensemble.bridges)
    parts = plural(networks, "network")
    if bridges:
        parts += f" and {plural(bridges, 'bridge')}"
    return (
        f"An ensemble of {parts}, trained on {title}. On the test split: {100 * combined.accuracy:.2f} % accuracy and "
        f"a calibrated NLL of {combined.nll:.4f}, at x{combined.cost.relative_flops:.3f} of one network's FLOPs."
    )


def _members_section(ensemble: Ensemble, names: Sequence[str]) -> str:
    lines = [f"- `{name}`: a network" for name in names[: len(ensemble.bases)]]
    for name, bridge in zip(names[len(ensemble.bases) :], ensemble.bridges, strict=True):
        lines.append(f"- `{name}`: a bridge ({bridge.extra_repr()})")
    mean = "their probabilities" if ensemble.mean == "probability" else "their logits"
    return (
        "\n".join(lines) + f"\n\nThe prediction is the mean of {mean}, calibrated by the temperature "
        f"{float(ensemble.temperature):.4f}, which was fitted on the validation split."
    )


def _scores_section(recipe: Recipe, answers: LogitTable, shared: Scored) -> str:
    """The shared ensemble beside deep ensembles, the first bridge, heads and the control."""
    plans = row_plans(recipe)
    levels: list[float] = []
    rows: list[tuple[str, Scored]] = []
    for plan in plans:
        names = plan.members
        reference = plan.family == plans[0].family
        if not all(name in answers.test for name in names) or not (
            reference or plan.role in ("bridge", "heads", "control")
        ):
            continue
        combined = answers.score(names, intervals=True)
        if reference:
            levels.append(combined.nll)
        if set(names) != set(shared.members):
            rows.append((plan.name, combined))
    table = [
        "| | accuracy | NLL | ECE | Brier | FLOPs | params | DEE |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(name, combined, levels) for name, combined in [("**this**", shared), *rows]),
    ]
    return (
        "\n".join(table) + f"\n\nTest split, {len(answers.test_labels):,} images. NLL, ECE and Brier score are "
        f"calibrated: one temperature per row, fitted on {len(answers.valid_labels):,} validation images. In brackets: "
        "95 % bootstrap interval over test images. FLOPs and params: in units of one network. DE-m: deep ensemble of m "
        "networks. DEE: how many networks a deep ensemble needs for the same NLL."
    )


def _row(name: str, combined: Scored, levels: Sequence[float]) -> str:
    low, high = combined.intervals["nll"]
    equivalent = dee(combined.nll, levels) if len(levels) > 1 else math.nan
    cells = (
        name,
        f"{100 * combined.accuracy:.2f} %",
        f"{combined.nll:.4f} [{low:.4f}, {high:.4f}]",
        f"{combined.ece:.4f}",
        f"{combined.brier:.4f}",
        f"x{combined.cost.relative_flops:.3f}",
        f"x{combined.cost.relative_params:.3f}",
        f"{equivalent:.2f}" if math.isfinite(equivalent) else "-",
    )
    return f"| {' | '.join(cells)} |"


def _data_section(recipe: Recipe, facts: DataFacts, title: str) -> str:
    counts = ", ".join(f"{count:,} {split}" for split, count in facts.counts.items())
    shape = "several inputs" if facts.image is None else f"inputs of {' x '.join(map(str, facts.image))}"
    noise = (
        f" Fixed pixel noise of {recipe.data.noise:g} standard deviations of the images." if recipe.data.noise else ""
    )
    return (
        f"{title}: {facts.classes} classes, {shape}; {counts}. The network takes floats in [0, 1]."
        f"{noise}\n\nThe scores hold for images of this kind only."
    )


def _cost_section(combined: Scored, setting: Setting) -> str:
    base = setting.base_cost
    flops, params = combined.cost.relative_flops * base.flops, combined.cost.relative_params * base.params
    return (
        f"{flops / 1e6:,.2f} million multiply-adds per image and {params / 1e6:,.3f} million parameters: "
        f"x{combined.cost.relative_flops:.3f} and x{combined.cost.relative_params:.3f} of one network. "
        "Counted: convolutions and matrix products."
    )


def _origin_section(recipe: Recipe, seed: int) -> str:
    from modebridge import __version__

    return (
        f"{recipe.about.rstrip('.')}.\n\nRecipe `{recipe.name}`, seed {seed}, {recipe.modes} modes. Epochs: "
        f"{recipe.mode.epochs} per mode, {recipe.curve.epochs} per curve, {recipe.bridge.epochs} per bridge. Written "
        f"by modebridge {__version__}."
    )
