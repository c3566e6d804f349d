"""A user's loader as a data set: read once for its labels and hash, then used as it is."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from modebridge import trees
from modebridge.batches import Mapped, check_batch, first_batch, flatten, map_inputs, take_rows
from modebridge.errors import ModebridgeError
from modebridge.types import Batch, Batches, Inputs


class LoaderSet:
    """Labels, hash and first inputs of a user's loader.

    Args:
        loader: yields (inputs, labels), or dicts that contain labels; can be iterated again.
        what: "train", "valid" or "test", for errors.
        ordered: whether it must yield the same batches every time, as for a held-out split, whose labels and
            predictions are collected in different passes.
    """

    def __init__(self, loader: Batches, what: str, *, ordered: bool) -> None:
        if not isinstance(loader, Iterable):
            raise ModebridgeError(
                f"Expected {what} to be a pair of tensors (images, labels), an ImageSet or a loader of such pairs, but "
                f"got {type(loader).__name__}; return one of these."
            )
        self.loader = loader
        self.what = what
        batches = loader if isinstance(loader, Iterator) else self.on(torch.device("cpu"))
        first = first_batch(batches, what)
        self.few: Inputs = take_rows(first[0], slice(0, 2))
        """Two inputs, to find shapes."""
        hashes: list[str] = []
        labels: list[Tensor] = []
        for batch in batches:
            hashes.append(_hash(batch))
            if ordered and len(hashes) == 1 and hashes[0] != _hash(first):
                raise ModebridgeError(
                    f"Expected {what} to yield the same batches every time, but the first one changed; build its "
                    "loader with shuffle=False and without random augmentation."
                )
            labels.append(batch[1])
        self.batches = len(labels)
        self.labels = torch.cat(labels)
        self.classes = int(self.labels.max()) + 1 if len(self.labels) else 0
        self._hash = hashlib.sha256("".join(hashes).encode()).hexdigest()

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
        """Its batches on a device, checked, with bytes as floats in [0, 1]; only the first `most` images if given."""
        return PlacedLoader(self, device, most)


class PlacedLoader(Mapped):
    """The batches of a user's loader, whose number is known."""

    def __init__(self, data: LoaderSet, device: torch.device, most: int | None) -> None:
        loader = data.loader
        if isinstance(loader, DataLoader) and loader.persistent_workers:
            # Such a loader has one iterator, which two networks trained in parallel would share.
            separate = copy.copy(loader)
            separate._iterator = None
            loader = separate
        super().__init__(loader, self._prepared, most)
        self._data, self._device = data, device

    def __len__(self) -> int:
        return self._data.batches

    def _prepared(self, item: object) -> Batch:
        if isinstance(item, tuple | list) and len(item) == 2:
            inputs, labels = item
            if isinstance(inputs, Tensor) and inputs.dtype == torch.uint8:
                item = (inputs.float() / 255, labels)
        inputs, labels = check_batch(item, self._data.what)
        return map_inputs(lambda tensor: tensor.to(self._device), inputs), labels.to(self._device)


def _hash(batch: Batch) -> str:
    return trees.fingerprint({**flatten(batch[0]), "labels": batch[1]})
