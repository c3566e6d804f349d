"""Let torchvision import beside the CPU build of torch, which lacks two of its operators.

timm, torchmetrics and lightning import it, so they fail with it. For the tests only: users install a fitting pair.
As a program it runs a script so: python tests/torchvision_on_cpu.py examples/timm_bridges.py
"""

from __future__ import annotations

import runpy
import sys

import torch

_LIBRARY: torch.library.Library | None = None


def mend() -> None:
    global _LIBRARY
    try:
        import torchvision
    except ImportError:
        return
    except RuntimeError:
        _LIBRARY = torch.library.Library("torchvision", "DEF")  # kept: its operators go when it goes
        for name in ("nms", "qnms"):
            _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision  # noqa: F401


if __name__ == "__main__":
    mend()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
