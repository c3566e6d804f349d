"""Batches from any loader, checked before and during use."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from os import PathLike
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from modebridge import trees
from modebridge.errors import ModebridgeError
from modebridge.types import IGNORED, Batch, Batches, Inputs, Params

LABELS = ("labels", "label", "targets", "target")
"""Keys of a dict that may hold the labels; the first one present is used."""

IMAGES = "images"

UNLABELED = 255
"""What data sets for segmentation write where there is no label."""

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
T = TypeVar("T")


class Mapped:
    """Batches of any loader that go through a function as they are drawn; `set_epoch` is passed on.

    The function makes a batch of what the loader yields, or returns None to skip it.
    """

    def __init__(self, batches: Batches, function: Callable[[Batch], Batch | None]) -> None:
        self._batches, self._function = batches, function

    def __iter__(self) -> Iterator[Batch]:
        return (batch for batch in map(self._function, self._batches) if batch is not None)

    def set_epoch(self, epoch: int) -> None:
        go_to_epoch(self._batches, epoch)


def go_to_epoch(batches: Batches, epoch: int) -> None:
    """Call `set_epoch` if the batches have it, as torch's distributed samplers and our loaders do."""
    set_epoch = getattr(batches, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)


def apart(batches: Batches) -> Batches:
    """The same batches, to be iterated beside themselves: a loader with persistent workers has a single iterator."""
    if not isinstance(batches, Mapped | DataLoader):
        return batches
    other = copy.copy(batches)
    if isinstance(other, Mapped):
        other._batches = apart(other._batches)
    elif other.persistent_workers:
        other._iterator = None
    return other


def map_inputs(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply a function to every tensor of the inputs.

    >>> map_inputs(lambda tensor: tensor + 1, {"ids": torch.tensor([1, 2])})
    {'ids': tensor([2, 3])}
    """
    if isinstance(inputs, Tensor):
        return function(inputs)
    return {name: function(tensor) for name, tensor in inputs.items()}


def copied(inputs: Inputs) -> Inputs:
    """A copy for a network that may change its input in place, such as one that starts with `x.sub_(mean)`."""
    return map_inputs(Tensor.clone, inputs)


def flatten(inputs: Inputs) -> dict[str, Tensor]:
    """The inputs as tensors by name, as a training step takes them; `unflatten` is the inverse.

    >>> sorted(flatten({"ids": torch.zeros(1), "mask": torch.ones(1)})), list(flatten(torch.zeros(1)))
    (['images/ids', 'images/mask'], ['images'])
    """
    if isinstance(inputs, Tensor):
        return {IMAGES: inputs}
    return trees.prefixed(f"{IMAGES}/", inputs)


def unflatten(prepared: Params) -> Inputs:
    """Extract the inputs from the tensors of a step."""
    return prepared[IMAGES] if IMAGES in prepared else trees.below(prepared, f"{IMAGES}/")


def rows_of(batch: Batch, rows: slice | Tensor) -> Batch:
    return take_rows(batch[0], rows), batch[1][rows]


def take_rows(inputs: Inputs, rows: slice | Tensor) -> Inputs:
    return map_inputs(lambda tensor: tensor[rows], inputs)


def size_of(inputs: Inputs) -> int:
    """The batch size B."""
    return len(next(iter(flatten(inputs).values())))


def inputs_of(example: object, what: str) -> Inputs:
    """The inputs of a network from an example: inputs alone, or a batch, whose labels are dropped.

    >>> sorted(inputs_of({"ids": torch.ones(2, 3), "labels": torch.ones(2), "texts": ["a", "b"]}, "the example"))
    ['ids']
    """
    if isinstance(example, tuple | list) and len(example) == 2 and isinstance(example[0], Tensor | Mapping):
        example = check_batch(example, what)[0]
    if isinstance(example, Mapping):
        example = _tensors_in({name: value for name, value in example.items() if name != label_key(example)})
    if not isinstance(example, Tensor | Mapping):
        raise ModebridgeError(
            f"Expected {what} to be a batch or a dict of tensors, but got {type(example).__name__}; "
            "pass inputs, such as images, or next(iter(loader)) of a loader."
        )
    tensors = flatten(example).values()
    if not tensors or any(tensor.dim() == 0 or not len(tensor) for tensor in tensors):
        raise ModebridgeError(
            f"Expected {what} to hold at least one image, but got none; pass a batch of one, or a dict of batches."
        )
    return example


def label_key(item: Mapping[str, object]) -> str | None:
    """The name under which a batch has its labels, if it has any."""
    return next((name for name in LABELS if name in item), None)


def _tensors_in(item: Mapping[str, object]) -> dict[str, Tensor]:
    return {str(name): value for name, value in item.items() if isinstance(value, Tensor)}


def shapes_of(inputs: Inputs) -> str:
    """Shape and dtype of one image, for error messages.

    >>> shapes_of(torch.zeros(5, 3, 8, 8))
    '(3, 8, 8) of torch.float32'
    """
    if isinstance(inputs, Tensor):
        return f"{tuple(inputs.shape[1:])} of {inputs.dtype}"
    return ", ".join(f"{name} {shapes_of(tensor)}" for name, tensor in inputs.items())


def check_loader(batches: object, what: str) -> None:
    """Raise an error for what is no loader of batches: a path, images alone, one batch."""
    if batches is None or isinstance(batches, str | PathLike | Tensor) or is_batch(batches):
        got = "one batch" if is_batch(batches) else "none" if batches is None else f"a {type(batches).__name__}"
        raise ModebridgeError(
            f"Expected {what} to yield batches (images, labels), but got {got}; pass a DataLoader or a list of batches."
        )


def first_batch(batches: Batches, what: str) -> Batch:
    """The first batch; raises an error if there is none, or if the batches can be iterated only once."""
    check_loader(batches, what)
    if isinstance(batches, Iterator):
        raise ModebridgeError(
            f"Expected {what} to be iterable more than once, but got a {type(batches).__name__} that is used up "
            "after one pass; pass a DataLoader, a list, or one of our loaders."
        )
    for item in batches:
        return check_batch(item, what)
    raise ModebridgeError(f"Expected {what} to have batches, but got none; check the split and the batch size.")


def is_batch(item: object) -> bool:
    """Whether something looks like a batch, rather than a loader of batches.

    >>> pair = torch.zeros(2, 3), torch.tensor([0, 1])
    >>> is_batch(pair), is_batch([pair, pair]), is_batch({"labels": pair[1]})
    (True, False, True)
    """
    if isinstance(item, Mapping):
        return True
    return isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[1], Tensor)


def check_batch(item: object, what: str) -> Batch:
    """Inputs and integer labels of equal length, from a pair or a dict; labels are returned as int64.

    Labels of places (B, *P) that are negative or 255 do not count. The labels of a dict are under `labels`, `label`,
    `targets` or `target`. Its other tensors become keyword arguments of the network. Values that are not tensors are
    dropped.
    """
    if isinstance(item, Mapping):
        key = label_key(item)
        if key is None:
            raise ModebridgeError(
                f"Expected the dicts of {what} to hold labels under one of {', '.join(LABELS)}, but got "
                f"{', '.join(map(str, item)) or 'nothing'}; rename them, or yield pairs."
            )
        item = ({name: value for name, value in item.items() if name != key}, item[key])
    if not (isinstance(item, tuple | list) and len(item) == 2):
        raise ModebridgeError(
            f"Expected {what} to yield (images, labels) or a dict with labels, but got {type(item).__name__}; "
            "wrap the loader so that it yields pairs."
        )
    inputs, labels = item
    if isinstance(inputs, Mapping):
        inputs = _tensors_in(inputs)
    elif not isinstance(inputs, Tensor):
        raise ModebridgeError(
            f"Expected the images of {what} to be float tensors, but got {type(inputs).__name__}; pass tensors."
        )
    if isinstance(labels, int) or (isinstance(labels, Tensor) and not labels.dim()):
        raise ModebridgeError(
            f"Expected {what} to yield batches, but got one image and its label; wrap the data set in a "
            "torch.utils.data.DataLoader."
        )
    if not isinstance(labels, Tensor) or labels.dtype not in INTEGERS:
        got = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise ModebridgeError(
            f"Expected the labels of {what} to be integers of shape (B,), or (B, H, W) for pixels, but got {got}; pass "
            "class indices."
        )
    if not flatten(inputs):
        raise ModebridgeError(f"Expected {what} to yield inputs, but got a dict without any tensor; add some.")
    for name, tensor in flatten(inputs).items():
        _check_input(tensor, len(labels), name.removeprefix(f"{IMAGES}/"), what)
    labels = labels.long()
    return inputs, labels if labels.dim() == 1 else labels.masked_fill((labels < 0) | (labels == UNLABELED), IGNORED)


def check_type(tensor: Tensor, name: str, what: str) -> None:
    """Raise an error if the dtype of an input shows that it is not ready for a network."""
    # Integers are tokens or masks; bytes are images that were not scaled.
    if (name == IMAGES and not tensor.is_floating_point()) or tensor.dtype == torch.uint8:
        raise ModebridgeError(
            f"Expected the {name} {what} to be float tensors, but got {tensor.dtype}; divide uint8 images by 255 "
            "(integers such as tokens must come in dicts)."
        )


def _check_input(tensor: Tensor, count: int, name: str, what: str) -> None:
    check_type(tensor, name, f"of {what}")
    if tensor.dim() == 0 or len(tensor) != count:
        got = len(tensor) if tensor.dim() else "one number"
        raise ModebridgeError(
            f"Expected as many labels as {name} in {what}, but got {count} for {got}; give one label per image."
        )
    if tensor.device.type == "cpu" and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise ModebridgeError(f"Expected the {name} of {what} to be finite, but got NaN or Inf; clean the data first.")


def check_labels(labels: Tensor, outputs: Sequence[int], what: str, *, sizes: bool = True) -> None:
    """Raise an error for labels that are no classes of logits (B, *outputs), or not one for each image or place.

    Without `sizes`, only the number of axes of places is compared.
    """
    if not outputs:
        raise ModebridgeError(
            f"Expected the network's logits on {what} to be (batch, classes), but got (batch,); return all."
        )
    *places, classes = outputs
    if labels.dim() != len(outputs) or (sizes and list(labels.shape[1:]) != places):
        raise ModebridgeError(
            f"Expected the labels of {what} to be of shape ({', '.join(map(str, ('B', *places)))}), one for each "
            f"{'place' if places else 'image'} that the network classifies, but got {tuple(labels.shape)}; pass class "
            "indices of that shape."
        )
    known = labels[labels != IGNORED] if places else labels
    if len(known) and not 0 <= int(known.min()) <= int(known.max()) < classes:
        raise ModebridgeError(
            f"Expected the labels of {what} to be in [0, {classes}), but got {int(known.min())} to "
            f"{int(known.max())}; the network's number of classes does not match the data."
        )


def one_ahead(jobs: Iterable[Callable[[], T]]) -> Iterator[T]:
    """The results of jobs in order; the next one runs on another thread while a result is used."""
    with ThreadPoolExecutor(1) as other:
        waiting: Future[T] | None = None
        for job in jobs:
            coming = other.submit(job)
            if waiting is not None:
                yield waiting.result()
            waiting = coming
        if waiting is not None:
            yield waiting.result()
