"""A user's loader as a data set: read once for its labels and hash, then used as it is."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from modebridge.batches import check_batch, first_batch, flatten, go_to_epoch, map_inputs, take_rows
from modebridge.errors import ModebridgeError
from modebridge.types import Batch, Batches, Inputs

__all__ = ["LoaderSet", "PlacedLoader"]


class LoaderSet:
    """Labels, hash and first inputs of a user's loader.

    Args:
        loader: yields (inputs, labels), or dicts that contain labels; can be iterated again.
        what: "train", "valid" or "test", for errors.
        ordered: whether it must yield the same batches every time, as for a held-out split, whose labels and
            predictions are collected in different passes.
    """

    def __init__(self, loader: Batches, what: str, *, ordered: bool) -> None:
        self.loader = loader
        self._what = what
        self.batches = 0
        first = _first(loader, what)
        self.few: Inputs = take_rows(first[0], slice(0, 2))
        """Two inputs, to find shapes."""
        digest = hashlib.sha256()
        labels: list[Tensor] = []
        for inputs, known in PlacedLoader(self, torch.device("cpu")):
            if ordered and not self.batches and not _same((inputs, known), first):
                raise ModebridgeError(
                    f"Expected {what} to yield the same batches every time, but the first one changed; build its "
                    "loader with shuffle=False and without random augmentation."
                )
            for name, tensor in sorted({**flatten(inputs), "labels": known}.items()):
                digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
                digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            labels.append(known)
            self.batches += 1
        self.labels = torch.cat(labels)
        self.classes = int(self.labels.max()) + 1 if len(self.labels) else 0
        self._hash = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.labels)

    def fingerprint(self) -> str:
        """A hash of all inputs and labels, in the order of the first pass."""
        return self._hash

    @property
    def class_names(self) -> list[str] | None:
        """The class names of the loader's data set, as in torchvision; None if unknown."""
        names = getattr(getattr(self.loader, "dataset", None), "classes", None)
        if not isinstance(names, list | tuple) or len(names) < self.classes:
            return None
        return [str(name) for name in names]

    def on(self, device: torch.device, most: int | None = None) -> PlacedLoader:
        """Its batches on a device; only the first `most` images if given."""
        return PlacedLoader(self, device, most)


class PlacedLoader:
    """The batches of a user's loader, checked, with bytes as floats in [0, 1], on the device where they are used."""

    def __init__(self, data: LoaderSet, device: torch.device, most: int | None = None) -> None:
        self._data = data
        self._device = device
        self._most = most
        self._loader = data.loader
        if isinstance(self._loader, DataLoader) and self._loader.persistent_workers:
            # Such a loader has one iterator, which two networks trained in parallel would share.
            separate = copy.copy(self._loader)
            separate._iterator = None
            self._loader = separate

    def __len__(self) -> int:
        return self._data.batches

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, if the loader supports it."""
        go_to_epoch(self._loader, epoch)

    def __iter__(self) -> Iterator[Batch]:
        left = self._most
        for item in self._loader:
            inputs, labels = _scaled(item, self._data._what)
            if left is not None:
                inputs, labels = take_rows(inputs, slice(0, left)), labels[:left]
                left -= len(labels)
            yield map_inputs(lambda tensor: tensor.to(self._device), inputs), labels.to(self._device)
            if left == 0:
                return


def _scaled(item: object, what: str) -> Batch:
    """A checked batch; uint8 images become floats in [0, 1]."""
    if isinstance(item, tuple | list) and len(item) == 2:
        inputs, labels = item
        if isinstance(inputs, Tensor) and inputs.dtype == torch.uint8:
            item = (inputs.float() / 255, labels)
    return check_batch(item, what)


def _first(loader: Batches, what: str) -> Batch:
    if not isinstance(loader, Iterable):
        raise ModebridgeError(
            f"Expected {what} to be a pair of tensors (images, labels), an ImageSet or a loader of such pairs, but got "
            f"{type(loader).__name__}; return one of these."
        )
    if isinstance(loader, Iterator):
        return first_batch(loader, what)  # raises the error
    for item in loader:
        return _scaled(item, what)
    return first_batch((), what)


def _same(batch: Batch, other: Batch) -> bool:
    tensors, others = ({**flatten(inputs), "labels": labels} for inputs, labels in (batch, other))
    return tensors.keys() == others.keys() and all(torch.equal(tensors[name], others[name]) for name in tensors)
