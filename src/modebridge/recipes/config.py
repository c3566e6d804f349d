"""A recipe: every choice of a run in one frozen record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modebridge.curves import PinStart
from modebridge.errors import ModebridgeError
from modebridge.nets import Norm
from modebridge.recipes.user_code import absolute, reference_to, split_reference
from modebridge.training import TrainConfig

__all__ = ["FOLDER", "DataConfig", "Recipe", "located"]

FOLDER = "folder:"
"""What the name of data begins with that is a folder of images in classes."""

IMAGES = 10**9
"""More than any data set has."""
MODES = 100
"""More would be no ensemble that anybody trains; their pairs alone are thousands of curves."""


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they are fed.

    Args:
        name: "digits"; a set of `modebridge.data.SETS`, which is read from its official files; "folder:PATH" with
            PATH/train/CLASS/*.jpg and so on (valid or val, and test, are cut from train where they are not beside
            it); or a function of your own file, itself or as "FILE.py:NAME", that returns (train, valid, test) or
            (train, test), each a pair of tensors (images, labels), an `ImageSet`, or a loader of such batches.
        batch_size: of modes and curves.
        bridge_batch_size: of bridges; 0 for the same.
        train: take only so many of the training images; 0 for all.
        valid: take only so many of the validation images; 0 for all.
        test: take only so many of the test images; 0 for all.
        pad: zero pixels around an image before a random crop of its own size.
        flip: mirror half of the images.
        noise: of digits only: standard deviation of the fixed pixel noise, in units of the images' own.
        size: pixels of a side that the images of a folder are brought to; 0 where the set has its own (of "in1k" the
            network's).
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
        _within("data.batch_size", self.batch_size, 1, IMAGES)
        for name in ("bridge_batch_size", "train", "valid", "test", "pad"):
            _within(f"data.{name}", getattr(self, name), 0, IMAGES)
        _within("data.noise", self.noise, 0, 1000)
        _within("data.size", self.size, 0, 10_000)
        if self.name.startswith(FOLDER) and not self.size:
            raise ModebridgeError(
                "Expected data.size to be the pixels of a side that a folder's images are brought to, but got 0; give "
                "for example data.size=32."
            )
        if self.size and not self.name.startswith((FOLDER, "in1k")):
            raise ModebridgeError(
                f"Expected data.size to be 0 for {self.name[:80]}, whose images have a size already, but got "
                f"{self.size}; it is for folders of images."
            )


@dataclass(frozen=True)
class Recipe:
    """A run from data to results.

    Args:
        name: how the command line calls it.
        about: one line for people.
        data: images and batches.
        net: the base network: one of the paper's names ("digits", "cifar10", "cifar100", "tin200", "in1k");
            "timm:MODEL" or "torchvision:MODEL", with options in brackets where it needs them, as in
            "timm:vit_tiny_patch16_224(img_size=32, depth=3)"; or a function of your own file that returns a module,
            itself or as "FILE.py:NAME". It may take `classes` and `channels`.
        modes: how many networks are trained.
        mode: training of each mode.
        curve: training of each curve.
        bridge: training of all bridges together.
        norm: of the paper's networks, "frn" or "bn"; others have their own.
        pairs: which curves: "first" from mode 0 to each other one, "all" between all modes, "paper" all pairs of modes
            0 to 4 and the pair 0-5.
        type2: of which pairs there are type II bridges: of the "first" alone, or of "all" curves.
        sizes: which sizes of bridges, of "small" and "medium".
        small: what the widths of small bridges are divided by.
        medium: what those of medium bridges are divided by.
        budget: at most this share of the base's FLOPs for a small bridge, instead of `small`; 0 to go by `small`.
        members_file: a .py file that registers kinds of members; it is executed wherever the run is looked at.
        methods: what is trained and scored beside bridges: methods as "distilled" or "mimo" (the keys of
            `modebridge.members.METHODS`), or single members by their names.
        base: what the modes are that curves and bridges stand on: "sgd", trained on labels as `mode` says; "swa", the
            means of the weights over the last quarter of such training; "distilled", students of "sgd" modes.
        curve_loss: what curves learn: what their "ends" learned, that is labels, or between distilled modes what the
            teachers of those say (on images mixed up by `student_mixup`); or "labels" always, which between distilled
            modes is for comparison only.
        control: whether a bridge that sees labels only, and no curve, is trained beside the others.
        mixup: alpha of the bridges' mixup; 0 for none.
        cutmix: alpha of their CutMix; 0 for none, and beside mixup each batch gets one of the two.
        student_epochs: how long students are trained, otherwise as modes are; 0 for as long as a mode.
        student_mixup: alpha of the students' mixup; 0 for none.
        student_cutmix: alpha of their CutMix; 0 for none.
        align: renumber the units of every other mode to match those of mode 0: "none", by "activations" (the paper, on
            ImageNet) or by "weights".
        pin_start: where a curve's pin begins: at the "midpoint" of the segment, or "random" as the authors do.
        together: how many networks are trained side by side on a GPU.
        device: "auto" takes a GPU where there is one; "cpu" does not (for networks so small that compiling costs more).
    """

    name: str
    about: str
    data: DataConfig
    net: str
    modes: int
    mode: TrainConfig
    curve: TrainConfig
    bridge: TrainConfig
    norm: Norm = "frn"
    pairs: Literal["first", "all", "paper"] = "first"
    type2: Literal["first", "all"] = "all"
    sizes: tuple[str, ...] = ("small",)
    small: float = 2.0
    medium: float = 1.0
    budget: float = 0.0
    members_file: str = ""
    methods: tuple[str, ...] = ()
    base: Literal["sgd", "swa", "distilled"] = "sgd"
    curve_loss: Literal["ends", "labels"] = "ends"
    control: bool = True
    mixup: float = 0.4
    cutmix: float = 0.0
    student_epochs: int = 0
    student_mixup: float = 1.0
    student_cutmix: float = 0.0
    align: Literal["none", "activations", "weights"] = "none"
    pin_start: PinStart = "midpoint"
    together: int = 4
    device: Literal["auto", "cpu"] = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "net", _as_text(self.net, "net"))
        whole = self.name.isprintable() and len(self.name) <= 100 and self.name.strip(". ")
        if not whole or "/" in self.name or "\\" in self.name:
            raise ModebridgeError(
                f"Expected name to be fit for a folder, but got {self.name[:50]!r}; use up to 100 letters and digits."
            )
        if len(self.about) > 1000 or not _is_text(self.about):
            raise ModebridgeError(f"Expected about to be a line of text, but got {self.about[:50]!r}; shorten it.")
        if self.members_file and not (self.members_file.endswith(".py") and _is_text(self.members_file)):
            raise ModebridgeError(
                f"Expected members_file to be a .py file, but got {self.members_file[:50]!r}; name the file that "
                "registers your members, or leave it out."
            )
        if self.modes < 2:
            raise ModebridgeError(
                f"Expected a recipe to have at least 2 modes, but got {self.modes}; a curve needs two ends."
            )
        _within("modes", self.modes, 2, MODES)
        for size in self.sizes:
            if size not in ("small", "medium"):
                raise ModebridgeError(
                    f"Expected sizes to be of 'small' and 'medium', but got '{size[:80]}'; choose of the two."
                )
        if not self.sizes:
            raise ModebridgeError("Expected at least one size of bridges, but got none; give sizes=small.")
        for name in ("small", "medium"):
            if not getattr(self, name) > 0:
                raise ModebridgeError(f"Expected {name} to be above 0, but got {getattr(self, name)}; 2 halves widths.")
        if len(set(self.sizes)) < len(self.sizes):
            raise ModebridgeError(
                f"Expected sizes to name each size once, but got {', '.join(self.sizes)}; shorten it."
            )
        if len(set(self.methods)) < len(self.methods) or not all(map(_is_text, self.methods)):
            raise ModebridgeError(
                f"Expected methods to name each method once, but got {', '.join(self.methods)[:50]!r}; shorten it."
            )
        _within("together", self.together, 1, MODES)
        for name in ("mixup", "cutmix", "student_mixup", "student_cutmix"):
            _within(name, getattr(self, name), 0, 1000)
        _within("student_epochs", self.student_epochs, 0, 10**6)
        _within("budget", self.budget, 0, 1)

    def curves(self) -> list[tuple[int, int]]:
        """The pairs of modes that get a curve, the lower number first.

        >>> from modebridge.recipes import find_recipe
        >>> find_recipe("digits").curves()
        [(0, 1), (0, 2), (0, 3)]
        """
        every = [(i, j) for i in range(self.modes) for j in range(i + 1, self.modes)]
        if self.pairs == "first":
            return [(i, j) for i, j in every if i == 0]
        if self.pairs == "paper":
            return [(i, j) for i, j in every if j <= 4 or (i, j) == (0, 5)]
        return every

    def slim(self, size: str) -> float:
        """What a size divides widths by: "small", "medium", or a number of its own as in "slim8"."""
        if size in ("small", "medium"):
            return float(getattr(self, size))
        return float(size.removeprefix("slim"))


def located(text: str, beside: Path | None = None) -> str:
    """The text of `net` or `data.name` with a path that holds in any folder; other text as it is.

    Args:
        text: "FILE.py:NAME", "folder:PATH", or a name.
        beside: the folder that relative paths begin at; None for the current one.
    """
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
    """Whether a file can hold it: halves of characters, as from a name that is no UTF-8, are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
