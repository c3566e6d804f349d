"""Every tensor in the tests is small: threads would only wait for each other, most of all on a busy machine."""

from __future__ import annotations

import torch

_LIBRARY: torch.library.Library | None = None


def _mend_torchvision() -> None:
    """Let torchvision import beside the CPU build of torch, which lacks two of its operators.

    timm, torchmetrics and lightning import it, so they fail with it. Here only: users install a fitting pair.
    """
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


def pytest_configure() -> None:
    torch.set_num_threads(1)
    _mend_torchvision()
