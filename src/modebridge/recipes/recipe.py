"""A recipe: every choice of a run in one frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from modebridge.curves import PinStart
from modebridge.errors import ModebridgeError
from modebridge.nets import Norm
from modebridge.recipes.user_code import absolute, reference_to, split_reference
from modebridge.training import PAPER_MIXUP, TrainConfig

FOLDER = "folder:"
"""Prefix of the name of data in a folder of images sorted by class."""

Stage: TypeAlias = Literal["mode", "curve", "bridge"]

MODES = 100
"""Upper limit for modes: more are never trained in practice, and would have thousands of pairs."""


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
    batch_size: int
    bridge_batch_size: int = 0
    train: int = 0
    valid: int = 0
    test: int = 0
    pad: int = 0
    flip: bool = False
    noise: float = 0.0
    size: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _as_text(self.name, "data.name"))
        _within("data.batch_size", self.batch_size, 1, 10**9)
        for name in ("bridge_batch_size", "train", "valid", "test", "pad"):
            _within(f"data.{name}", getattr(self, name), 0, 10**9)
        _within("data.noise", self.noise, 0, 1000)
        _within("data.size", self.size, 0, 10_000)
        if self.name.startswith(FOLDER) and not self.size:
            raise ModebridgeError(
                "Expected data.size to be the side in pixels to which a folder's images are scaled, but got 0; set "
                "for example data.size=32."
            )
        if self.size and not self.name.startswith((FOLDER, "in1k")):
            raise ModebridgeError(
                f"Expected data.size to be 0 for {self.name[:80]}, whose images already have a size, but got "
                f"{self.size}; it is for folders of images."
            )


@dataclass(frozen=True)
class StageConfig:
    """The training of modes, curves or bridges, as far as it differs between them.

    Args:
        epochs: passes over the training data.
        weight_decay: L2 penalty added to the gradient of every parameter.
        keep: "best" on validation, or the "last" epoch.
    """

    epochs: int
    weight_decay: float = 0.0
    keep: Literal["best", "last"] = "last"


@dataclass(frozen=True)
class Recipe:
    """A run from data to results.

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
        budget: maximum share of the base's FLOPs for a small bridge, used instead of `width_divisor`; 0 for no budget.
        members_file: a .py file that registers kinds of members; it is executed whenever the run is used.
        methods: what to train and score besides bridges: methods such as "distilled" or "mimo" (the keys of
            `modebridge.members.METHODS`), or single members by name.
        base: the modes that curves and bridges are built on: "sgd", trained on labels with the settings of `mode`;
            "swa", averages of the weights over the last quarter of such training.
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
    about: str
    data: DataConfig
    net: str
    modes: int
    mode: StageConfig
    curve: StageConfig
    bridge: StageConfig
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: Literal["no", "standard", "authors"] = "no"
    warmup: int = 5
    norm: Norm = "frn"
    pairs: Literal["first", "all", "paper"] = "first"
    type2: Literal["first", "all"] = "all"
    sizes: tuple[str, ...] = ("small",)
    width_divisor: float = 2.0
    budget: float = 0.0
    members_file: str = ""
    methods: tuple[str, ...] = ()
    base: Literal["sgd", "swa"] = "sgd"
    control: bool = True
    mixup: float = PAPER_MIXUP
    cutmix: float = 0.0
    student_epochs: int = 0
    align: Literal["none", "activations", "weights"] = "none"
    pin_start: PinStart = "midpoint"
    together: int = 4
    device: Literal["auto", "cpu"] = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "net", _as_text(self.net, "net"))
        valid_name = self.name.isprintable() and len(self.name) <= 100 and self.name.strip(". ")
        if not valid_name or "/" in self.name or "\\" in self.name:
            raise ModebridgeError(
                f"Expected name to be valid as a folder name, but got {self.name[:50]!r}; use up to 100 letters and "
                "digits."
            )
        if len(self.about) > 1000 or not _is_text(self.about):
            raise ModebridgeError(f"Expected about to be a line of text, but got {self.about[:50]!r}; shorten it.")
        if self.members_file and not (self.members_file.endswith(".py") and _is_text(self.members_file)):
            raise ModebridgeError(
                f"Expected members_file to be a .py file, but got {self.members_file[:50]!r}; set the file that "
                "registers your members, or omit it."
            )
        if self.modes < 2:
            raise ModebridgeError(
                f"Expected a recipe to have at least 2 modes, but got {self.modes}; a curve needs two ends."
            )
        unknown = [size for size in self.sizes if size not in ("small", "medium")]
        if unknown:
            raise ModebridgeError(
                f"Expected sizes to be 'small' or 'medium', but got '{unknown[0][:80]}'; choose from the two."
            )
        if not self.sizes:
            raise ModebridgeError("Expected at least one size of bridges, but got none; set sizes=small.")
        for key in ("sizes", "methods"):
            names = getattr(self, key)
            if len(set(names)) < len(names) or not all(map(_is_text, names)):
                raise ModebridgeError(
                    f"Expected {key} to name each once, but got {', '.join(names)[:50]!r}; shorten it."
                )
        _within("modes", self.modes, 2, MODES)
        _within("together", self.together, 1, MODES)
        _within("mixup", self.mixup, 0, 1000)
        _within("cutmix", self.cutmix, 0, 1000)
        _within("student_epochs", self.student_epochs, 0, 10**6)
        _within("budget", self.budget, 0, 1)
        _within("width_divisor", self.width_divisor, 0.1, 10**6)
        for stage in ("mode", "curve", "bridge"):
            self.training(stage)  # checks the numbers

    def training(self, stage: Stage) -> TrainConfig:
        """The training settings of a stage."""
        own = getattr(self, stage)
        if not isinstance(own, StageConfig):
            raise ModebridgeError(
                f"Expected {stage} to be a StageConfig, but got {type(own).__name__}; write StageConfig(epochs=...), "
                "and lr, momentum, nesterov and warmup beside it in the recipe."
            )
        shared: dict[str, Any] = {key: getattr(self, key) for key in ("lr", "momentum", "nesterov", "warmup")}
        return TrainConfig(**vars(own), **shared)

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


def located(text: str, beside: Path | None = None) -> str:
    """The text of `net` or `data.name` with an absolute path, relative to a folder or the current one."""
    if text.startswith(FOLDER):
        return FOLDER + absolute(text.removeprefix(FOLDER), beside)
    reference = split_reference(text)
    return f"{absolute(reference[0], beside)}:{reference[1]}" if reference else text


def _as_text(given: object, what: str) -> str:
    return reference_to(given, what) if callable(given) else located(str(given))


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        got = str(value)[:50]
        raise ModebridgeError(f"Expected {name} to be between {least:,} and {most:,}, but got {got}; change it.")


def _is_text(text: str) -> bool:
    """Whether it can be encoded as UTF-8: lone surrogates, as from file names that are not UTF-8, cannot."""
    return text.encode(errors="replace").decode() == text
