"""What can be known before training starts is checked before training starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import run, skeleton
from modebridge.types import Batches

__all__ = ["check_batches", "classes_of", "first_images"]


def first_images(batches: Batches, what: str) -> Tensor:
    """The images of the first batch, with a clear error where there is none."""
    if isinstance(batches, Iterator):
        raise ModebridgeError(
            f"Expected {what} to be iterable more than once, but got a {type(batches).__name__} that is used up "
            "after one pass; give a DataLoader, a list, or one of our loaders."
        )
    for item in batches:
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise ModebridgeError(
                f"Expected {what} to yield (images, labels), but got {type(item).__name__}; "
                "wrap the loader so that it yields pairs."
            )
        images: Tensor = item[0]
        return images
    raise ModebridgeError(f"Expected {what} to have batches, but got none; check the split and the batch size.")


@torch.no_grad()
def classes_of(net: nn.Module, mode: Mode, images: Tensor) -> int:
    """K: how many logits the network gives, from one image."""
    where = next((tensor.device for tensor in mode.params.values()), images.device)
    logits = run(skeleton(net).to(where), mode.params, mode.buffers, images[:1].to(where))
    if logits.dim() != 2:
        raise ModebridgeError(
            f"Expected the network's logits to be (batch, classes), but got {tuple(logits.shape)}; give a classifier."
        )
    return logits.shape[1]


def check_batches(net: nn.Module, mode: Mode, batches: Batches, what: str) -> int:
    """Look at the data before training: every batch of a list, the first of a loader. Returns K."""
    classes = classes_of(net, mode, _check(first_images(batches, what), what))
    for images, labels in batches:
        _check(images, what)
        if len(images) != len(labels):
            raise ModebridgeError(
                f"Expected as many labels as images in {what}, but got {len(labels)} for {len(images)}; "
                "give one label an image."
            )
        if labels.dtype not in (torch.int64, torch.int32, torch.uint8) or labels.dim() != 1:
            raise ModebridgeError(
                f"Expected the labels of {what} to be whole numbers of shape (B,), but got "
                f"{labels.dtype} of shape {tuple(labels.shape)}; give class indices."
            )
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise ModebridgeError(
                f"Expected the labels of {what} to be in [0, {classes}), but got {int(labels.min())} to "
                f"{int(labels.max())}; the network's number of classes does not fit the data."
            )
        if not isinstance(batches, Sequence):
            break
    return classes


def _check(images: Tensor, what: str) -> Tensor:
    if not isinstance(images, Tensor) or not images.is_floating_point():
        got = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise ModebridgeError(
            f"Expected the images of {what} to be float tensors, but got {got}; divide uint8 images by 255."
        )
    if not bool(torch.isfinite(images).all()):
        raise ModebridgeError(f"Expected the images of {what} to be finite, but got NaN or Inf; clean the data first.")
    return images
