"""The tensor in what a third-party module returns: the logits of a network, the feature of a submodule."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from modebridge.errors import ModebridgeError

__all__ = ["feature_of", "logits_of"]


def logits_of(output: object, *, training: bool = False) -> Tensor:
    """The logits from a network's output: a tensor, or an object or dict that holds `logits`.

    Hugging Face models return objects. In training mode, torchvision's Inception returns one too, and other networks
    a tuple: the logits, then those of auxiliary heads, which are ignored.

    Args:
        output: the network's output.
        training: whether the network is in training mode; tuples are accepted only then.

    >>> import torch
    >>> logits_of({"logits": torch.ones(1, 2), "hidden_states": None})
    tensor([[1., 1.]])
    """
    logits = output
    if isinstance(output, Mapping):
        logits = output.get("logits")
    elif not isinstance(output, Tensor):
        logits = getattr(output, "logits", None)
        if logits is None and training and isinstance(output, tuple | list) and output:
            logits = output[0]
    if not isinstance(logits, Tensor):
        raise ModebridgeError(
            f"Expected the network's output to be a tensor or to hold one as 'logits', but got "
            f"{type(output).__name__}; wrap the network in a module that returns its logits."
        )
    return logits


def feature_of(output: object, tap: str) -> Tensor:
    """The feature in a tapped submodule's output: a tensor, or the first one of a tuple, list or dict."""
    feature = output
    if isinstance(output, Mapping):
        feature = next(iter(output.values()), None)
    elif isinstance(output, tuple | list):
        feature = output[0] if output else None
    if not isinstance(feature, Tensor):
        raise ModebridgeError(
            f"Expected the output of tap '{tap}' to be a tensor or to start with one, but got "
            f"{type(output).__name__}; tap a submodule that returns a tensor."
        )
    return feature
