"""Fold batch norm into the preceding convolution or linear layer: in evaluation mode, both are one affine map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

__all__ = ["fold"]

_BEFORE: dict[type[nn.Module], tuple[type[nn.Module], ...]] = {
    nn.BatchNorm1d: (nn.Linear, nn.Conv1d),
    nn.BatchNorm2d: (nn.Conv2d,),
    nn.BatchNorm3d: (nn.Conv3d,),
}


def fold(net: nn.Module, keep: Sequence[str] = ()) -> nn.Module:
    """Fold batch norms in place where that is exact, and return the network.

    A batch norm is folded if the graph of the forward pass (torch.fx) shows that a convolution or linear layer feeds
    it and nothing else. It becomes an identity, so every submodule keeps its name. A network that fx cannot trace is
    folded child by child; children that fx cannot trace stay unchanged.

    Args:
        net: network in evaluation mode; changed in place.
        keep: taps whose features must not change; a batch norm right after one is not folded.

    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    >>> fold(net)[1]
    Identity()
    """
    if not any(isinstance(module, tuple(_BEFORE)) for module in net.modules()):
        return net
    modules = dict(net.named_modules(remove_duplicate=False))
    # A module with two names or with shared weights is used in two places, and folding would change both.
    uses = Counter(id(module) for module in modules.values())
    owners = Counter(id(p) for _, p in net.named_parameters(remove_duplicate=False))
    for before, after in _pairs(net, ""):
        layer, norm = modules[before], modules[after]
        tied = any(owners[id(p)] > 1 for p in (*layer.parameters(), *norm.parameters()))
        read = any(f"{before}.".startswith(f"{tap}.") and not f"{after}.".startswith(f"{tap}.") for tap in keep)
        if read or tied or uses[id(layer)] > 1 or uses[id(norm)] > 1 or not _foldable(layer, norm):
            continue
        # torch's fusion creates a new layer; its weights go into the old one, which may be a subclass.
        fuse = fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval
        fused = fuse(layer, norm)
        layer.weight, layer.bias = fused.weight, fused.bias
        _replace(net, after, nn.Identity())
    return net.requires_grad_(False)


def _foldable(layer: nn.Module, norm: nn.Module) -> bool:
    kind = _BEFORE.get(type(norm))
    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in (layer, norm))
    return (
        kind is not None
        and isinstance(layer, kind)
        and not norm.training
        and norm.running_mean is not None
        and not hooked
        and not hasattr(layer, "parametrizations")
        # After a linear layer on tokens, batch norm may normalise over tokens instead of features.
        and (not isinstance(layer, nn.Linear) or layer.out_features == norm.num_features)
    )


class _Tracer(fx.Tracer):
    """Traces down to layers without children, also those of torch and of third-party libraries."""

    def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
        return not any(True for _ in m.children()) or super().is_leaf_module(m, qualified_name)


def _pairs(net: nn.Module, prefix: str) -> list[tuple[str, str]]:
    """Names of (layer, batch norm) pairs in which only the batch norm uses the layer's output."""
    try:
        graph = _Tracer().trace(net)
    # A forward pass on proxies may raise anything.
    except Exception:
        return [pair for name, child in net.named_children() for pair in _pairs(child, f"{prefix}{name}.")]
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    pairs = []
    for node in graph.nodes:
        if node.op != "call_module" or calls[str(node.target)] > 1:
            continue
        users: list[Any] = list(node.users)
        if len(users) == 1 and users[0].op == "call_module" and calls[str(users[0].target)] == 1:
            pairs.append((f"{prefix}{node.target}", f"{prefix}{users[0].target}"))
    return pairs


def _replace(net: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(net.get_submodule(parent), child, module.train(False))
