"""Data sets as tensors or files, splits, batched augmentation."""

from modebridge.data.cifar import read_cifar
from modebridge.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from modebridge.data.datasets import SETS, Splits, cut_off, load_folder, load_set, tiny_imagenet
from modebridge.data.digits import load_digits, noisy_digits
from modebridge.data.image_cache import read_images
from modebridge.data.image_files import ImageFiles, find_images
from modebridge.data.imageset import ImageSet, Loader, crop_and_flip
from modebridge.data.loaderset import LoaderSet
from modebridge.data.other_sets import fitted, letters, read_svhn, scrambled
from modebridge.data.stream import Stream

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
