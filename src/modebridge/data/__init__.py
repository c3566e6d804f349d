"""Data sets as tensors, splits, batched augmentation."""

from modebridge.data.augment import crop_and_flip
from modebridge.data.cifar import read_cifar
from modebridge.data.digits import load_digits, noisy_digits
from modebridge.data.imageset import ImageSet, Loader

__all__ = ["ImageSet", "Loader", "crop_and_flip", "load_digits", "noisy_digits", "read_cifar"]
