"""Every tensor in the tests is small: threads would only wait for each other, most of all on a busy machine."""

from __future__ import annotations

import torch

from tests.torchvision_on_cpu import mend


def pytest_configure() -> None:
    torch.set_num_threads(1)
    mend()
