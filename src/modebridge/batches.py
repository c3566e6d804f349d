"""Batches as they come from anybody's loader: looked at before use, and while they are used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError
from modebridge.types import Batch, Batches, Inputs, Params

__all__ = [
    "Checked",
    "check_batch",
    "check_images",
    "check_labels",
    "check_type",
    "each",
    "first_batch",
    "go_to_epoch",
    "inputs_in",
    "inputs_of",
    "named",
    "rows_of",
    "shapes_of",
    "size_of",
    "some_of",
]

LABELS = ("labels", "label", "targets", "target")
"""Under which of its names a dict holds the labels; the first that is there."""

IMAGES = "images"


class Checked:
    """The same batches, each checked as it is drawn: floats that are finite, labels that are classes.

    A dict with its labels inside becomes a pair. Tensors that lie on a GPU are checked for type and shape only: looking
    at their numbers would stop it.

    Args:
        batches: what is iterated; `set_epoch` is passed on.
        what: how errors call it, "train" or "valid".
        classes: K.
        least: batches of fewer images are left out, with one warning: batch norm cannot learn from a single value.
    """

    def __init__(self, batches: Batches, what: str, classes: int, least: int = 1) -> None:
        self._batches = batches
        self._what = what
        self.classes = classes
        self._least = least
        self._warned = False

    def __iter__(self) -> Iterator[Batch]:
        for item in self._batches:
            inputs, labels = check_batch(item, self._what)
            if labels.device.type == "cpu":
                check_labels(labels, self.classes, self._what)
            if self._is_enough(len(labels)):
                yield inputs, labels

    def shared(self, rank: int, size: int) -> Iterator[tuple[Batch, int]] | None:
        """One process's rows of every batch, where the loader can read them alone (our `Stream` can)."""
        shared = getattr(self._batches, "shared", None)
        if not callable(shared):
            return None
        parts: Iterator[tuple[Batch, int]] | None = shared(rank, size)
        return None if parts is None else ((batch, count) for batch, count in parts if self._is_enough(count))

    def _is_enough(self, count: int) -> bool:
        if count < self._least and not self._warned:
            self._warned = True
            warnings.warn(
                f"A batch of {count} image{'s' if count > 1 else ''} in {self._what} is left out: batch norm needs at "
                f"least {self._least} to learn from. Another batch size, or drop_last=True, avoids it.",
                stacklevel=2,
            )
        return count >= self._least

    def first(self) -> Inputs:
        """The inputs of the first batch."""
        return first_batch(self._batches, self._what)[0]

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch, where the batches know of epochs."""
        go_to_epoch(self._batches, epoch)


def go_to_epoch(batches: Batches, epoch: int) -> None:
    """Call `set_epoch` where the batches have it, as torch's distributed samplers and our loaders do."""
    set_epoch = getattr(batches, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)


def each(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The inputs with every tensor put through a function.

    >>> each(lambda tensor: tensor + 1, {"ids": torch.tensor([1, 2])})
    {'ids': tensor([2, 3])}
    """
    if isinstance(inputs, Tensor):
        return function(inputs)
    return {name: function(tensor) for name, tensor in inputs.items()}


def named(inputs: Inputs) -> dict[str, Tensor]:
    """The inputs as plain tensors by name, for what a step is handed; `inputs_in` is the way back.

    >>> sorted(named({"ids": torch.zeros(1), "mask": torch.ones(1)})), list(named(torch.zeros(1)))
    (['images/ids', 'images/mask'], ['images'])
    """
    if isinstance(inputs, Tensor):
        return {IMAGES: inputs}
    return {f"{IMAGES}/{name}": tensor for name, tensor in inputs.items()}


def inputs_in(prepared: Params) -> Inputs:
    """The inputs among the tensors of a step."""
    if IMAGES in prepared:
        return prepared[IMAGES]
    start = f"{IMAGES}/"
    return {name.removeprefix(start): tensor for name, tensor in prepared.items() if name.startswith(start)}


def rows_of(batch: Batch, rows: slice) -> Batch:
    """Some images of a batch, with their labels."""
    return each(lambda tensor: tensor[rows], batch[0]), batch[1][rows]


def some_of(inputs: Inputs, rows: slice | Tensor) -> Inputs:
    """Some rows of the inputs alone."""
    return each(lambda tensor: tensor[rows], inputs)


def size_of(inputs: Inputs) -> int:
    """B, how many images or texts there are."""
    return len(next(iter(named(inputs).values())))


def inputs_of(example: object, what: str) -> Inputs:
    """What a network is called with, out of an example: inputs alone, or a batch whose labels are left out.

    >>> sorted(inputs_of({"ids": torch.ones(2, 3), "labels": torch.ones(2), "texts": ["a", "b"]}, "the example"))
    ['ids']
    """
    if isinstance(example, tuple | list) and len(example) == 2 and isinstance(example[0], Tensor | Mapping):
        example = check_batch(example, what)[0]
    if isinstance(example, Mapping):
        labels = next((name for name in LABELS if name in example), None)
        pairs = [(str(name), value) for name, value in example.items() if name != labels]
        example = {name: value for name, value in pairs if isinstance(value, Tensor)}
    if not isinstance(example, Tensor | Mapping):
        raise ModebridgeError(
            f"Expected {what} to be a batch or a dict of tensors, but got {type(example).__name__}; "
            "give real inputs, not their shape."
        )
    tensors = named(example).values()
    if not tensors or any(tensor.dim() == 0 or not len(tensor) for tensor in tensors):
        raise ModebridgeError(
            f"Expected {what} to hold at least one image, but got none; give a batch of one, or a dict of batches."
        )
    return example


def shapes_of(inputs: Inputs) -> str:
    """Shape and type of one image, for errors.

    >>> shapes_of(torch.zeros(5, 3, 8, 8))
    '(3, 8, 8) of torch.float32'
    """
    if isinstance(inputs, Tensor):
        return f"{tuple(inputs.shape[1:])} of {inputs.dtype}"
    return ", ".join(f"{name} {shapes_of(tensor)}" for name, tensor in inputs.items())


def first_batch(batches: Batches, what: str) -> Batch:
    """The first batch, with a clear error where there is none or could be none the second time."""
    if isinstance(batches, Iterator):
        raise ModebridgeError(
            f"Expected {what} to be iterable more than once, but got a {type(batches).__name__} that is used up "
            "after one pass; give a DataLoader, a list, or one of our loaders."
        )
    for item in batches:
        return check_batch(item, what)
    raise ModebridgeError(f"Expected {what} to have batches, but got none; check the split and the batch size.")


def check_batch(item: object, what: str) -> Batch:
    """Inputs and whole labels of one length, out of a pair or of a dict; labels come back as int64.

    A dict gives up its labels (`labels`, `label`, `targets`, `target`), and its other tensors become arguments of the
    network by name; what is not a tensor is left out.
    """
    if isinstance(item, Mapping):
        item = _pair(item, what)
    if not (isinstance(item, tuple | list) and len(item) == 2):
        raise ModebridgeError(
            f"Expected {what} to yield (images, labels) or a dict that holds labels, but got {type(item).__name__}; "
            "wrap the loader so that it yields pairs."
        )
    inputs, labels = item
    if isinstance(inputs, Mapping):
        inputs = {str(name): tensor for name, tensor in inputs.items() if isinstance(tensor, Tensor)}
    elif not isinstance(inputs, Tensor):
        raise ModebridgeError(
            f"Expected the images of {what} to be float tensors, but got {type(inputs).__name__}; "
            "give a tensor, or a dict of tensors."
        )
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex() or labels.dim() != 1:
        got = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise ModebridgeError(
            f"Expected the labels of {what} to be whole numbers of shape (B,), but got {got}; give class indices."
        )
    if not named(inputs):
        raise ModebridgeError(f"Expected {what} to yield inputs, but got a dict without any tensor; name some.")
    for name, tensor in named(inputs).items():
        _check_input(tensor, len(labels), name.removeprefix(f"{IMAGES}/"), what)
    return inputs, labels.long()


def check_images(item: object, what: str) -> tuple[Tensor, Tensor]:
    """The same for what takes one tensor of images only."""
    images, labels = check_batch(item, what)
    if not isinstance(images, Tensor):
        raise ModebridgeError(
            f"Expected {what} to yield one tensor of images, but got several inputs ({', '.join(images)}); "
            "wrap the network in a module of one input."
        )
    return images, labels


def _pair(item: Mapping[str, object], what: str) -> tuple[object, object]:
    key = next((name for name in LABELS if name in item), None)
    if key is None:
        raise ModebridgeError(
            f"Expected the dicts of {what} to hold labels under one of {', '.join(LABELS)}, but got "
            f"{', '.join(map(str, item)) or 'nothing'}; rename them, or yield pairs."
        )
    return {name: value for name, value in item.items() if name != key}, item[key]


def check_type(tensor: Tensor, name: str, what: str) -> None:
    """Refuse an input whose type says that it is not ready for a network."""
    # Whole numbers are tokens or masks; bytes are images that somebody forgot to scale.
    if (name == IMAGES and not tensor.is_floating_point()) or tensor.dtype == torch.uint8:
        raise ModebridgeError(
            f"Expected the {name} of {what} to be float tensors, but got {tensor.dtype}; divide uint8 images by 255 "
            "(whole numbers such as tokens come in dicts)."
        )


def _check_input(tensor: Tensor, count: int, name: str, what: str) -> None:
    check_type(tensor, name, what)
    if tensor.dim() == 0 or len(tensor) != count:
        got = len(tensor) if tensor.dim() else "one number"
        raise ModebridgeError(
            f"Expected as many labels as {name} in {what}, but got {count} for {got}; give one label an image."
        )
    if tensor.device.type == "cpu" and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise ModebridgeError(f"Expected the {name} of {what} to be finite, but got NaN or Inf; clean the data first.")


def check_labels(labels: Tensor, classes: int, what: str) -> None:
    """Refuse labels that are not classes of the network."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ModebridgeError(
            f"Expected the labels of {what} to be in [0, {classes}), but got {int(labels.min())} to "
            f"{int(labels.max())}; the network's number of classes does not fit the data."
        )
