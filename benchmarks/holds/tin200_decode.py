"""Decode Tiny ImageNet from the parts of its archive to one file, on all cores: seconds instead of minutes.

    python benchmarks/holds/tin200_decode.py FOLDER OUT.safetensors PART ...

Unpacks the concatenated .tar.xz parts into FOLDER, decodes every image, and writes the splits of `data.datasets`:
90,000 training, 10,000 validation and 10,000 test images as uint8.
"""

from __future__ import annotations

import io
import lzma
import multiprocessing
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from modebridge.data.datasets import tiny_imagenet
from modebridge.data.image_files import ImageFiles, open_image
from modebridge.data.imageset import ImageSet

CHUNK = 500


def unpack(folder: Path, parts: Sequence[str]) -> None:
    """Unpack the archive into a folder."""
    joined = io.BytesIO(b"".join(Path(part).read_bytes() for part in parts))
    with lzma.open(joined) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        tar.extractall(folder, filter="data")


def decode(paths: Sequence[str]) -> np.ndarray:
    """Decode images to uint8 (N, 3, 64, 64)."""
    return np.stack([np.asarray(open_image(path)).transpose(2, 0, 1) for path in paths])


def read(files: ImageFiles) -> ImageSet:
    """Decode all images of a set, in order, in several processes: the GIL slows threads down on small images."""
    chunks = [files.paths[start : start + CHUNK] for start in range(0, len(files), CHUNK)]
    with multiprocessing.get_context("fork").Pool() as pool:
        images = np.concatenate(list(pool.imap(decode, chunks)))
    return ImageSet(torch.from_numpy(images), files.labels, files.classes)


def main() -> None:
    folder, out, *parts = sys.argv[1:]
    start = time.perf_counter()
    if parts:
        unpack(Path(folder), parts)
        print(f"unpacked in {time.perf_counter() - start:.1f} s", flush=True)
    train, test = (read(files) for files in tiny_imagenet(folder))
    train = train.shuffled(0)
    cut = len(train) * 9 // 10
    tensors = {}
    for name, split in {"train": train.part(0, cut), "valid": train.part(cut, len(train)), "test": test}.items():
        tensors |= {f"{name}_images": split.images.contiguous(), f"{name}_labels": split.labels.contiguous()}
    save_file(tensors, out + ".part")
    Path(out + ".part").rename(out)
    print(f"decoded in {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
