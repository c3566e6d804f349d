"""Data sets as tensors or files, splits, batched augmentation."""

from modebridge.data.images import (
    ImageFiles as ImageFiles,
    ImageSet as ImageSet,
    LoaderSet as LoaderSet,
    find_images as find_images,
)
from modebridge.data.loaders import Loader as Loader, read_images as read_images
from modebridge.data.sets import (
    SETS as SETS,
    Splits as Splits,
    cut_off as cut_off,
    load_digits as load_digits,
    load_folder as load_folder,
    load_set as load_set,
    noisy_digits as noisy_digits,
    read_cifar as read_cifar,
)
