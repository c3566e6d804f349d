"""Every tensor in the tests is small: threads would only wait for each other, most of all on a busy machine."""

from __future__ import annotations

import os

import torch

from tests.torchvision_on_cpu import mend


def pytest_configure() -> None:
    torch.set_num_threads(1)
    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        # oneDNN's AVX2 kernel for the weight gradient of a 1x1 convolution of 4 channels, channels last, stride 2,
        # writes past its memory (torch 2.13); the nets of our tests are that narrow. Read at its first use.
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX")
    mend()
