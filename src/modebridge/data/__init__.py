"""Data sets as tensors or files, splits, batched augmentation, corruptions."""

from modebridge.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt, fitted, letters, read_svhn, scrambled
from modebridge.data.images import ImageFiles, ImageSet, find_images, read_images
from modebridge.data.loaderset import LoaderSet
from modebridge.data.sets import (
    SETS,
    Splits,
    cut_off,
    load_digits,
    load_folder,
    load_set,
    noisy_digits,
    read_cifar,
    tiny_imagenet,
)
from modebridge.data.stream import Loader, Stream, crop_and_flip

__all__ = [
    "CORRUPTIONS",
    "SETS",
    "SEVERITIES",
    "ImageFiles",
    "ImageSet",
    "Loader",
    "LoaderSet",
    "Splits",
    "Stream",
    "corrupt",
    "crop_and_flip",
    "cut_off",
    "find_images",
    "fitted",
    "letters",
    "load_digits",
    "load_folder",
    "load_set",
    "noisy_digits",
    "read_cifar",
    "read_images",
    "read_svhn",
    "scrambled",
    "tiny_imagenet",
]
