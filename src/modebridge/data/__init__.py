"""Data sets as tensors or files, splits, batched augmentation."""

from modebridge.data.images import ImageFiles, ImageSet, LoaderSet, find_images
from modebridge.data.loaders import Loader, read_images
from modebridge.data.sets import SETS, Splits, cut_off, load_digits, load_folder, load_set, noisy_digits, read_cifar

__all__ = [
    "SETS",
    "ImageFiles",
    "ImageSet",
    "Loader",
    "LoaderSet",
    "Splits",
    "cut_off",
    "find_images",
    "load_digits",
    "load_folder",
    "load_set",
    "noisy_digits",
    "read_cifar",
    "read_images",
]
