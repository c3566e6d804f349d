"""From a run folder to a folder that can be shared: weights, architecture, and a model card with the run's scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError, plural
from modebridge.files import Card, describe, read_folder, save
from modebridge.members import Setting, row_plans
from modebridge.recipes import Recipe
from modebridge.report import markdown_table
from modebridge.runs.ensemble import ensemble_of
from modebridge.runs.store import RunFolder
from modebridge.scoring import LogitTable, Row, Scored

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
    names = tuple(notes["names"])
    if notes["unit"] is not None:
        raise ModebridgeError(
            f"Expected modes, students and bridges to share, but got '{names[0]}', whose network is built inside the "
            "run; use modebridge export for one file of it."
        )
    setting: Setting = notes["setting"]
    recipe = setting.recipe
    scored, table = _scored(recipe, notes["answers"], names)
    title, known = DATA.get(recipe.data.name, ("custom data", ""))
    image = setting.facts.image
    card = Card(
        about=_about(ensemble, scored, title),
        license=license,
        task="image-classification" if image is not None and len(image) == 3 else "",
        datasets=(known,) if known else (),
        data=title,
        metrics={"accuracy": scored.accuracy, "nll": scored.nll, "ece": scored.ece, "brier_score": scored.brier},
        sections={
            "What is in it": _members_section(ensemble, names),
            "Scores": table,
            "Data": _data_section(setting, title),
            "Cost": _cost_section(scored, setting),
            "Training": _origin_section(recipe, setting.seed),
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


def _scored(recipe: Recipe, answers: LogitTable, names: tuple[str, ...]) -> tuple[Scored, str]:
    """The shared ensemble's scores, and a table with deep ensembles, the first bridge, heads and the control."""
    plans = row_plans(recipe)
    wanted = [row for row in plans if row.family == plans[0].family or row.role in ("bridge", "heads", "control")]
    existing = [row for row in wanted if set(row.members) <= set(answers.test)]
    *rows, this = answers.score_rows([*existing, Row("**this**", names, "shared")])
    return this.scores, (
        f"{markdown_table([this, *rows])}\n\nTest split, {this.scores.n:,} images. NLL, ECE and Brier score are "
        f"calibrated: one temperature per row, fitted on {len(answers.valid_labels):,} validation images. FLOPs and "
        "params: in units of one network. DE-m: deep ensemble of m networks. DEE: how many networks a deep ensemble "
        "needs for the same NLL. 95 % bootstrap interval of this NLL over test images: "
        f"{' to '.join(f'{end:.4f}' for end in this.scores.intervals['nll'])}."
    )


def _about(ensemble: Ensemble, scored: Scored, title: str) -> str:
    bridges = f" and {plural(len(ensemble.bridges), 'bridge')}" if len(ensemble.bridges) else ""
    return (
        f"An ensemble of {plural(len(ensemble.bases), 'network')}{bridges}, trained on {title}. On the test split: "
        f"{100 * scored.accuracy:.2f} % accuracy and a calibrated NLL of {scored.nll:.4f}, at "
        f"x{scored.cost.relative_flops:.3f} of one network's FLOPs."
    )


def _members_section(ensemble: Ensemble, names: Sequence[str]) -> str:
    lines = [f"- `{name}`: a network" for name in names[: len(ensemble.bases)]]
    for name, bridge in zip(names[len(ensemble.bases) :], ensemble.bridges, strict=True):
        lines.append(f"- `{name}`: a bridge ({bridge.extra_repr()})")
    return "\n".join(lines) + (
        "\n\nThe prediction is the mean of their probabilities, calibrated by the temperature "
        f"{float(ensemble.temperature):.4f}, which was fitted on the validation split."
    )


def _data_section(setting: Setting, title: str) -> str:
    facts, noise = setting.facts, setting.recipe.data.noise
    counts = ", ".join(f"{count:,} {split}" for split, count in facts.counts.items())
    shape = "several inputs" if facts.image is None else f"inputs of {' x '.join(map(str, facts.image))}"
    noisy = f" Fixed pixel noise of {noise:g} standard deviations of the images." if noise else ""
    return (
        f"{title}: {facts.classes} classes, {shape}; {counts}. The network takes floats in [0, 1].{noisy}\n\nThe "
        "scores hold for images of this kind only."
    )


def _cost_section(scored: Scored, setting: Setting) -> str:
    flops = scored.cost.relative_flops * setting.base_cost.flops
    params = scored.cost.relative_params * setting.base_cost.params
    return (
        f"{flops / 1e6:,.2f} million multiply-adds per image and {params / 1e6:,.3f} million parameters: "
        f"x{scored.cost.relative_flops:.3f} and x{scored.cost.relative_params:.3f} of one network. Counted: "
        "convolutions and matrix products."
    )


def _origin_section(recipe: Recipe, seed: int) -> str:
    from modebridge import __version__

    return (
        f"{recipe.about.rstrip('.')}.\n\nRecipe `{recipe.name}`, seed {seed}, {recipe.modes} modes. Epochs: "
        f"{recipe.mode.epochs} per mode, {recipe.curve.epochs} per curve, {recipe.bridge.epochs} per bridge. Written "
        f"by modebridge {__version__}."
    )
