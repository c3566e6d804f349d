"""Batches as they come from anybody's loader: looked at before use, and while they are used."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError
from modebridge.types import Batch, Batches

__all__ = ["Checked", "check_batch", "check_labels", "first_batch", "go_to_epoch", "rows_of"]


class Checked:
    """The same batches, each checked as it is drawn: floats that are finite, labels that are classes.

    Tensors that lie on a GPU are checked for type and shape only: looking at their numbers would stop it.

    Args:
        batches: what is iterated; `set_epoch` is passed on.
        what: how errors call it, "train" or "valid".
        classes: K.
    """

    def __init__(self, batches: Batches, what: str, classes: int) -> None:
        self._batches = batches
        self._what = what
        self._classes = classes

    def __iter__(self) -> Iterator[Batch]:
        for item in self._batches:
            images, labels = check_batch(item, self._what)
            if labels.device.type == "cpu":
                check_labels(labels, self._classes, self._what)
            yield images, labels

    def shared(self, rank: int, size: int) -> Iterator[tuple[Batch, int]] | None:
        """One process's rows of every batch, where the loader can read them alone (our `Stream` can)."""
        shared = getattr(self._batches, "shared", None)
        return shared(rank, size) if callable(shared) else None

    def first(self) -> Tensor:
        """The images of the first batch."""
        return first_batch(self._batches, self._what)[0]

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch, where the batches know of epochs."""
        go_to_epoch(self._batches, epoch)


def go_to_epoch(batches: Batches, epoch: int) -> None:
    """Call `set_epoch` where the batches have it, as torch's distributed samplers and our loaders do."""
    set_epoch = getattr(batches, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)


def rows_of(batch: Batch, rows: slice) -> Batch:
    """Some images of a batch, with their labels."""
    return batch[0][rows], batch[1][rows]


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
    """A pair of float images and whole labels of one length; labels come back as int64."""
    if not (isinstance(item, tuple | list) and len(item) == 2):
        raise ModebridgeError(
            f"Expected {what} to yield (images, labels), but got {type(item).__name__}; "
            "wrap the loader so that it yields pairs."
        )
    images, labels = item
    if not isinstance(images, Tensor) or not images.is_floating_point():
        got = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise ModebridgeError(
            f"Expected the images of {what} to be float tensors, but got {got}; divide uint8 images by 255."
        )
    if images.device.type == "cpu" and not bool(torch.isfinite(images).all()):
        raise ModebridgeError(f"Expected the images of {what} to be finite, but got NaN or Inf; clean the data first.")
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex() or labels.dim() != 1:
        got = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise ModebridgeError(
            f"Expected the labels of {what} to be whole numbers of shape (B,), but got {got}; give class indices."
        )
    if len(images) != len(labels):
        raise ModebridgeError(
            f"Expected as many labels as images in {what}, but got {len(labels)} for {len(images)}; "
            "give one label an image."
        )
    return images, labels.long()


def check_labels(labels: Tensor, classes: int, what: str) -> None:
    """Refuse labels that are not classes of the network."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ModebridgeError(
            f"Expected the labels of {what} to be in [0, {classes}), but got {int(labels.min())} to "
            f"{int(labels.max())}; the network's number of classes does not fit the data."
        )
