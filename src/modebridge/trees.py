"""Arithmetic on trees of tensors, matched by name, never by position."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError, some

Params: TypeAlias = Mapping[str, Tensor]
"""A tree of tensors by name, such as `dict(net.named_parameters())`."""


@dataclass(frozen=True)
class State:
    """What training changes: parameters by gradients, buffers (running statistics) by the forward pass."""

    params: Params
    buffers: Params
    frozen: Params = field(default_factory=dict)
    """Parameters that the loss needs and training never changes, such as the ends of a curve."""
    pace: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Factors on the learning rate and weight decay of some parameters; all others have factors of 1."""

    @classmethod
    def split(cls, params: Params, buffers: Params, learns: Container[str]) -> State:
        """Split parameters: those named in `learns` are trained, the others are frozen."""
        return cls(
            {name: tensor for name, tensor in params.items() if name in learns},
            buffers,
            {name: tensor for name, tensor in params.items() if name not in learns},
        )

    @property
    def all_params(self) -> dict[str, Tensor]:
        """Trained and frozen parameters together, as a network takes them."""
        return {**self.params, **self.frozen}


def check_same(trees: Sequence[Params], what: str, *, types: bool = True) -> None:
    """Raise an error with the first differences if trees (called `what`) differ in names, shapes or dtypes."""
    first = trees[0]
    for other in trees[1:]:
        missing = [name for name in first if name not in other]
        extra = [name for name in other if name not in first]
        if missing or extra:
            parts = [f"{word} {some(names)}" for word, names in (("missing", missing), ("extra", extra)) if names]
            raise ModebridgeError(
                f"Expected {what} to have the same tensors, but got {' and '.join(parts)}; "
                "use checkpoints of the same architecture."
            )
        for name, tensor in first.items():
            if other[name].shape != tensor.shape:
                raise ModebridgeError(
                    f"Expected {what} to have the same shapes, but got {tuple(tensor.shape)} and "
                    f"{tuple(other[name].shape)} for '{name}'; use checkpoints of the same architecture "
                    "and number of classes."
                )
            if types and other[name].dtype != tensor.dtype:
                raise ModebridgeError(
                    f"Expected {what} to have the same dtypes, but got {tensor.dtype} and {other[name].dtype} for "
                    f"'{name}'; convert one of them."
                )


def combine(weights: Sequence[float | Tensor], trees: Sequence[Params]) -> dict[str, Tensor]:
    """The weighted sum of trees: sum over k of weights[k] * trees[k], name by name.

    A weight of exactly 0 (a Python number) skips its tree and a weight of 1 uses it unchanged, so a curve reaches its
    ends bit for bit.

    >>> combine([0.25, 0.75], [{"w": torch.tensor(4.0)}, {"w": torch.tensor(8.0)}])
    {'w': tensor(7.)}
    """
    used = [(w, t) for w, t in zip(weights, trees, strict=True) if isinstance(w, Tensor) or w != 0.0]
    return {name: _weighted_sum([(w, t[name]) for w, t in used]) for name in trees[0]}


def _weighted_sum(terms: Sequence[tuple[float | Tensor, Tensor]]) -> Tensor:
    weight, tensor = terms[0]
    total = tensor if not isinstance(weight, Tensor) and weight == 1.0 else weight * tensor
    for weight, tensor in terms[1:]:
        # addcmul and alpha need a Python number; a tensor weight (r under autodiff) needs a product and a sum.
        total = total + weight * tensor if isinstance(weight, Tensor) else total.add(tensor, alpha=weight)
    return total


def common(trees: Sequence[Params]) -> dict[str, Tensor]:
    """The tensors that are bitwise equal in all trees; their mean is the same tensor, without rounding.

    >>> common([{"a": torch.tensor(0.1), "b": torch.tensor(1)}, {"a": torch.tensor(0.1), "b": torch.tensor(2)}])
    {'a': tensor(0.1000)}
    """
    first, *others = trees
    return {name: tensor for name, tensor in first.items() if all(torch.equal(tensor, other[name]) for other in others)}


def clone(tree: Params) -> dict[str, Tensor]:
    """A copy that shares no memory and no graph with `tree`."""
    return {name: tensor.detach().clone() for name, tensor in tree.items()}


def below(tree: Params, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, without it and in order; the inverse of `prefixed`.

    >>> below(prefixed("start/", {"w": torch.tensor(1)}) | {"end/w": torch.tensor(2)}, "start/")
    {'w': tensor(1)}
    """
    return {name.removeprefix(prefix): tensor for name, tensor in tree.items() if name.startswith(prefix)}


def prefixed(prefix: str, tree: Params) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tree.items()}


def to(tree: Params, device: torch.device | str) -> dict[str, Tensor]:
    """The same tree on another device; tensors already on it are not copied."""
    return {name: tensor.to(device) for name, tensor in tree.items()}


def wide(tensor: Tensor) -> Tensor:
    """Convert 16-bit floats to float32; other dtypes stay as they are.

    Layers may run in 16 bits, but probabilities, losses and means must not: rows would sum to 0.998.

    >>> wide(torch.ones((), dtype=torch.bfloat16)).dtype, wide(torch.ones((), dtype=torch.float64)).dtype
    (torch.float32, torch.float64)
    """
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def exact(tensor: Tensor) -> Tensor:
    """The tensor in float64; on the CPU if it is on Apple's GPU, which has no such numbers."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def norm(tree: Params) -> Tensor:
    """The Euclidean norm of a tree, in float64.

    >>> norm({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    tensor(5., dtype=torch.float64)
    """
    squares = [exact(tensor).square().sum() for tensor in tree.values()]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros((), dtype=torch.float64)


def size(tree: Params) -> int:
    return sum(tensor.numel() for tensor in tree.values())


def fingerprint(*trees: Params) -> str:
    """A hash of names, shapes, dtypes and bytes: equal for equal trees, whatever their order or device."""
    digest = hashlib.sha256()
    for tree in trees:
        for name in sorted(tree):
            tensor = tree[name].detach().to("cpu").contiguous()
            digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # a buffer
        digest.update(b"#")
    return digest.hexdigest()
