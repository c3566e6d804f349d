"""A recipe: every choice of a run in one frozen dataclass, also as text."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from modebridge.curves import PinStart
from modebridge.errors import ModebridgeError
from modebridge.nets import Norm
from modebridge.recipes.settings import check_key, converted, flat, kinds_of, nested, short
from modebridge.recipes.user_code import FOLDER, located, reference_to
from modebridge.training import PAPER_MIXUP, TrainConfig

Stage: TypeAlias = Literal["mode", "curve", "bridge"]

PLACES = ("net", "data.name", "members_file")
"""Settings that may name a file or a folder of the user's."""
LIMITS: dict[str, tuple[float, float]] = {
    "data.batch_size": (1, 10**9),
    **{f"data.{name}": (0, 10**9) for name in ("bridge_batch_size", "train", "valid", "test", "pad")},
    "data.noise": (0, 1000),
    "data.size": (0, 10_000),
    "modes": (2, 100),  # a curve needs two ends; more than 100 are never trained, and have thousands of pairs
    "together": (1, 100),
    "mixup": (0, 1000),
    "cutmix": (0, 1000),
    "student_epochs": (0, 10**6),
    "budget": (0, 1),
    "width_divisor": (0.1, 10**6),
}
"""The lowest and highest value of settings; `TrainConfig` checks those of training."""


@dataclass(frozen=True)
class DataConfig:
    """The images, and how they are loaded.

    Args:
        name: "digits"; a data set of `modebridge.data.SETS`, read from its official files; "folder:PATH" with
            PATH/train/CLASS/*.jpg and so on (valid or val, and test, are cut from train if they do not exist); or your
            own function, passed as such or as "FILE.py:NAME", that returns (train, valid, test) or (train, test), each
            a pair of tensors (images, labels), an `ImageSet`, or a loader of such batches.
        batch_size: batch size for modes and curves.
        bridge_batch_size: batch size for bridges; 0 for the same.
        train: number of training images to use; 0 for all.
        valid: number of validation images to use; 0 for all.
        test: number of test images to use; 0 for all.
        pad: zero pixels added on each side before a random crop to the original size.
        flip: whether to mirror a random half of the images.
        noise: for digits only: standard deviation of the fixed pixel noise, relative to that of the images.
        size: side in pixels to which the images of a folder are scaled; 0 if the data set has its own size (for "in1k"
            the network's).
    """

    name: str
    batch_size: int = 128
    bridge_batch_size: int = 0
    train: int = 0
    valid: int = 0
    test: int = 0
    pad: int = 0
    flip: bool = False
    noise: float = 0.0
    size: int = 0


@dataclass(frozen=True)
class StageConfig:
    """The training of modes, curves or bridges, as far as it differs between them.

    Args:
        epochs: passes over the training data.
        weight_decay: L2 penalty added to the gradient of every parameter.
        keep: "best" on validation, or the "last" epoch.
    """

    epochs: int = 30
    weight_decay: float = 0.0
    keep: Literal["best", "last"] = "last"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run from data to results; a name, data and a network are enough where networks are given by `--modes`.

    Args:
        name: name on the command line.
        about: one-line description.
        data: images and batches.
        net: the base network: one of the paper's names ("digits", "cifar10", "cifar100", "tin200", "in1k");
            "timm:MODEL" or "torchvision:MODEL", with options in parentheses if needed, as in
            "timm:vit_tiny_patch16_224(img_size=32, depth=3)"; or your own function that returns a module, passed as
            such or as "FILE.py:NAME". It may take `classes` and `channels`.
        modes: number of networks to train.
        mode: training of each mode.
        curve: training of each curve.
        bridge: training of all bridges together.
        lr: the peak learning rate of all training.
        momentum: momentum of SGD.
        nesterov: "no", "standard" as in torch, or "authors", see `TrainConfig`.
        warmup: epochs until the peak.
        norm: norm of the paper's networks, "frn" or "bn"; others have their own.
        pairs: which curves to train: "first" from mode 0 to each other mode, "all" between all modes, "paper" all pairs
            of modes 0 to 4 and the pair 0-5.
        type2: which pairs get type II bridges: only the "first", or "all" curves.
        sizes: sizes of bridges to train, from "small" and "medium".
        width_divisor: divisor of the widths of small bridges; medium bridges are twice as wide.
        budget: maximum share of the network's FLOPs for heads and small bridges; 0 for the paper's bodies, whose widths
            are divided by `width_divisor`.
        members_file: a .py file that registers kinds of members; it is executed whenever the run is used.
        methods: what to train and score besides the modes: "heads" on the other modes, a "distilled" network, "paper"
            (curves and bridges), others such as "mimo" (the keys of `modebridge.members.METHODS`), or single members by
            name.
        base: the modes that curves and bridges are built on: "sgd", trained on labels with the settings of `mode`;
            "averaged", the mean of the weights over the last quarter of such training; "swa", the same with a constant
            learning rate there, as in the paper.
        control: whether to also train a bridge on labels only, without a curve.
        mixup: alpha of the bridges' mixup; 0 for none.
        cutmix: alpha of the bridges' CutMix; 0 for none. With mixup as well, each batch gets one of the two.
        student_epochs: epochs of students, which are otherwise trained like modes; 0 for the same as modes.
        align: whether to permute the units of every other mode to match mode 0: "none", by "activations" (the paper, on
            ImageNet) or by "weights".
        pin_start: initial pin of a curve: the "midpoint" of the segment, or "random" as in the authors' code.
        together: number of networks to train in parallel on a GPU.
        device: "auto" uses a GPU if there is one; "cpu" does not (for networks so small that compiling costs more).
    """

    name: str
    about: str = ""
    data: DataConfig
    net: str
    modes: int = 4
    mode: StageConfig = StageConfig()
    curve: StageConfig = StageConfig()
    bridge: StageConfig = StageConfig()
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: Literal["no", "standard", "authors"] = "no"
    warmup: int = 5
    norm: Norm = "frn"
    pairs: Literal["first", "all", "paper"] = "first"
    type2: Literal["first", "all"] = "all"
    sizes: tuple[Literal["small", "medium"], ...] = ("small",)
    width_divisor: float = 2.0
    budget: float = 0.05
    members_file: str = ""
    methods: tuple[str, ...] = ("heads", "distilled")
    base: Literal["sgd", "averaged", "swa"] = "sgd"
    control: bool = True
    mixup: float = PAPER_MIXUP
    cutmix: float = 0.0
    student_epochs: int = 0
    align: Literal["none", "activations", "weights"] = "none"
    pin_start: PinStart = "midpoint"
    together: int = 4
    device: Literal["auto", "cpu"] = "auto"

    def __post_init__(self) -> None:
        settings = flat(vars(self))
        for key in PLACES:
            given = settings.get(key)
            settings[key] = reference_to(given, key) if callable(given) else located(str(given))
        for name, value in nested(converted(Recipe, settings, LIMITS)).items():
            part = DataConfig if name == "data" else StageConfig
            object.__setattr__(self, name, part(**value) if isinstance(value, dict) else value)
        if not self.name.isprintable() or len(self.name) > 100 or "/" in self.name or not self.name.strip(". "):
            raise ModebridgeError(
                f"Expected name to be valid as a folder name, but got {short(self.name)!r}; use letters and digits."
            )
        if not self.sizes:
            raise ModebridgeError("Expected at least one size of bridges, but got none; set sizes=small.")
        folder = self.data.name.startswith(FOLDER)
        if folder != bool(self.data.size) and self.data.name != "in1k":
            raise ModebridgeError(
                f"Expected data.size to be {'above 0' if folder else '0'} for {short(self.data.name)}, but got "
                f"{self.data.size}; it is the side in pixels to which the images of a folder are scaled, such as 32."
            )
        for stage in get_args(Stage):
            self.training(stage)  # checks the numbers

    def training(self, stage: Stage) -> TrainConfig:
        shared: dict[str, Any] = {key: getattr(self, key) for key in ("lr", "momentum", "nesterov", "warmup")}
        return TrainConfig(optimizer="sgd", **vars(getattr(self, stage)), **shared)

    @property
    def title(self) -> str:
        """Its name, and what it is about if it says so."""
        return f"{self.name}: {self.about}" if self.about else self.name

    @property
    def paper(self) -> bool:
        """Whether curves and the paper's bridges are part of the run."""
        return "paper" in self.methods

    def curves(self) -> list[tuple[int, int]]:
        """The pairs of modes that get a curve, the lower index first.

        >>> from modebridge.recipes import find_recipe
        >>> find_recipe("digits").curves()
        [(0, 1), (0, 2), (0, 3)]
        """
        pairs = [(i, j) for i in range(self.modes) for j in range(i + 1, self.modes)]
        if self.pairs == "first":
            return [(i, j) for i, j in pairs if i == 0]
        if self.pairs == "paper":
            return [(i, j) for i, j in pairs if j <= 4 or (i, j) == (0, 5)]
        return pairs

    def slim(self, size: str) -> float:
        """The divisor of widths for a size: "small", "medium", or an explicit number as in "slim8"."""
        named = {"small": self.width_divisor, "medium": self.width_divisor / 2}
        return float(named[size] if size in named else size.removeprefix("slim"))

    def budget_of(self, size: str) -> float | None:
        """The maximum share of the network's FLOPs for bridges of a size; None if `slim` sets the width."""
        return self.budget if size == "small" and self.budget else None


def changed(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """A recipe with some settings replaced, each "key=value", checked against the type of the key.

    All at once, so that settings that depend on each other can come in any order.

    >>> from modebridge.recipes import find_recipe
    >>> changed(find_recipe("digits"), ["mode.epochs=3", "norm=frn", "sizes=small,medium"]).mode.epochs
    3
    """
    values = flat(vars(recipe))
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise ModebridgeError(
                f"Expected --set to be key=value, but got '{short(setting)}'; write for example modes=3."
            )
        values[key] = text
    return _from_settings(values, "--set") if settings else recipe


def differences(before: Recipe, now: Recipe) -> list[str]:
    old, new = flat(vars(before)), flat(vars(now))
    return [f"{key} {old[key]} -> {value}" for key, value in new.items() if old[key] != value and key != "about"]


def to_toml(recipe: Recipe, seed: int) -> str:
    """A recipe and its seed as TOML, with all that is needed to repeat the run."""
    lines = ["# What this run was made with; `modebridge run recipe.toml` repeats it.", f"seed = {seed}"]
    # Numbers, texts and lists are written as in JSON.
    lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in flat(vars(recipe)).items()]
    return "\n".join(lines) + "\n"


def from_toml(text: str | bytes, where: str, beside: Path | None = None) -> tuple[Recipe, int]:
    """A recipe and its seed, from TOML by `to_toml` or by hand; `beside` is the base of relative paths."""
    try:
        document = tomllib.loads(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ModebridgeError(f"Expected '{where}' to be TOML, but got '{error}'; fix the file.") from None
    seed = document.pop("seed", 0)
    if type(seed) is not int:
        raise ModebridgeError(
            f"Expected seed in '{where}' to be an integer, but got '{short(seed)}'; change the value."
        )
    settings = flat(document)
    places = {key: located(value, beside) for key in PLACES if isinstance(value := settings.get(key), str)}
    return _from_settings(settings | places, f"'{where}'"), seed


def _from_settings(settings: Mapping[str, Any], where: str) -> Recipe:
    """A recipe from values or texts by dotted key."""
    for key in settings:
        check_key(key, kinds_of(Recipe), where)
    try:
        return Recipe(**nested(settings))
    except TypeError as error:  # missing 2 required positional arguments: 'net' and 'modes'
        missing = str(error).partition(": ")[2]
        raise ModebridgeError(
            f"Expected every setting of a recipe in {where}, but it lacks {missing}; add what has no default."
        ) from None
