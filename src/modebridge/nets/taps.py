"""Every possible tap of any network, with its shape and its share of the FLOPs."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from modebridge.batches import inputs_of, map_inputs, take_rows
from modebridge.errors import ModebridgeError, aligned, near
from modebridge.nets.flops import ForwardTrace, Shape, watch
from modebridge.nets.quirks import on_copy
from modebridge.nets.resnet import ResNet
from modebridge.nets.running import check_tap
from modebridge.types import Batch, Inputs, Layout

LISTS = (nn.Sequential, nn.ModuleList)

BEST = 0.8
"""Share of the FLOPs before the paper's taps, which precede the last 3 of 15 or 16 blocks."""

EARLY = 0.2
"""A place before more than the rest of the FLOPs is nobody's first choice."""

NO_BLOCK, POOLED = 0.2, 0.1
"""Penalty in distance to `BEST` for submodules that are not blocks, and for vectors."""


@dataclass(frozen=True)
class Tap:
    """A submodule whose output a bridge can read, with its shape without the batch axis."""

    name: str
    shape: Shape
    layout: Layout
    before: float  # share of the network's FLOPs up to the feature
    after: float  # and after it
    block: bool  # whether it is one of the network's blocks
    inner: bool  # whether it is inside a block
    bridge: tuple[float, float] | None = None  # cost of a bridge there, as shares of the FLOPs and parameters, if any


@dataclass(frozen=True)
class Inspection:
    """The result of `inspect`; it prints as a table.

    Args:
        kind: name of the network's class.
        taps: all possible taps, in execution order.
        refused: reasons why other submodules cannot be tapped, by name.
        flops: multiply-adds of the whole network for one image.
        classes: number of classes K.
        dense: whether it classifies every place, such as a pixel.
        preferred: a tap to choose whatever its share.
        priced: whether the cost of a bridge was counted at each tap.
    """

    kind: str
    taps: tuple[Tap, ...]
    refused: Mapping[str, str]
    flops: float
    classes: int
    dense: bool = False
    preferred: str | None = field(default=None, repr=False)
    priced: bool = field(default=False, repr=False)

    @property
    def chosen(self) -> Tap:
        """The tap for a bridge: the block nearest to 80 % of the FLOPs, as in the paper."""
        if not self.taps:
            raise ModebridgeError(
                f"Expected {self.kind} to have a submodule to tap, but got none; see `refused` for the reasons, "
                "or pass the feature through its own submodule (such as nn.Identity)."
            )
        for tap in self.taps:
            if tap.name == self.preferred:
                return tap
        outer = [tap for tap in self.taps if not tap.inner] or list(self.taps)
        # Of equal ones the last: the activation after a convolution rather than the convolution itself.
        return min(
            reversed(outer),
            key=lambda tap: abs(tap.before - BEST) + (0 if tap.block else NO_BLOCK) + (POOLED if _pooled(tap) else 0),
        )

    @property
    def last_map(self) -> Tap | None:
        """Where a perceptron reads instead of a chosen map, on networks without blocks: at the last one.

        There the mean of an earlier map says little: on digits (four times three networks) NLL .690 instead of .519,
        one network .564.
        """
        maps = [
            tap for tap in self.taps if not tap.inner and tap.layout not in ("vector", "tokens") and not _pooled(tap)
        ]
        known = self.preferred is None and not self.chosen.block and self.chosen in maps
        return maps[-1] if known else None

    def tap(self, name: str) -> Tap:
        """The tap called `name`; raises an error with the reason if there is none."""
        for tap in self.taps:
            if tap.name == name:
                return tap
        problem = f"Expected tap to be a submodule of {self.kind}, but got '{name}'"
        if name in self.refused:
            problem = f"Expected tap '{name}' to be a feature that a bridge can read, but it {self.refused[name]}"
        raise ModebridgeError(f"{problem}; {near(name, [tap.name for tap in self.taps])}")

    def table(self, every: bool = False) -> str:
        """The taps as a table with the choice marked; `every` includes those inside blocks."""
        chosen = self.chosen.name if self.taps else None
        shown = [tap for tap in self.taps if every or not tap.inner or tap.name == chosen]
        prices = ["bridge: FLOPs", "params"] if self.priced else []
        rows = [["", "tap", "feature", "layout", "before", "after", *prices]]
        for tap in shown:
            sizes = " x ".join(map(str, tap.shape))
            mark = "->" if tap.name == chosen else ""
            rows.append([mark, tap.name, sizes, tap.layout, f"{tap.before:.1%}", f"{tap.after:.1%}"])
            if self.priced:
                rows[-1] += ["-", "-"] if tap.bridge is None else [f"{share:+.1%}" for share in tap.bridge]
        hidden = len(self.taps) - len(shown)
        notes = [f"{hidden} more inside blocks: table(every=True)"] if hidden else []
        notes += [f"{len(self.refused)} cannot be tapped: see .refused"] if self.refused else []
        head = f"{self.kind}: {self.flops:,.0f} multiply-adds, {self.classes} classes"
        return "\n".join([head, *aligned(rows, 4), *(["; ".join(notes)] if notes else [])])

    def __str__(self) -> str:
        return self.table()


def find_taps(net: nn.Module, example: Inputs | Batch) -> Inspection:
    """Every tap of `net` that a bridge could read, and the default choice; `bridges.inspect` adds costs of bridges."""
    # The first row is enough.
    row = take_rows(inputs_of(example, "the example"), slice(1))

    def both(bare: nn.Module, inputs: Sequence[Inputs]) -> tuple[ForwardTrace, ForwardTrace]:
        # Two batch sizes show which outputs do not keep the batch on their first axis.
        return watch(bare, inputs[0]), watch(bare, map_inputs(lambda t: torch.cat([t, t]), inputs[0]), count=False)

    first, second = on_copy(net, [row], both)
    assert first.logits is not None
    names = {name: module for name, module in net.named_modules() if name}
    refused = {name: reason for name in names if (reason := _reason(name, first, second))}
    blocks = _find_blocks(net, first)
    # Hide the inside of blocks, and of what can be tapped as a whole and is not just a list of others.
    lists = {name for name, module in names.items() if isinstance(module, nn.Sequential)}
    lists |= {name for name in names if any(block.startswith(f"{name}.") for block in blocks)}
    hiding = [name for name in names if name in blocks or not (name in refused or name in lists)]
    taps = []
    for name, seen in first.seen.items():
        if name in refused or seen.output is None:
            continue
        shape, before = tuple(seen.output.shape[1:]), seen.flops / first.flops if first.flops else math.nan
        inner = any(name.startswith(f"{outer}.") for outer in hiding)
        taps.append(Tap(name, shape, _layout(seen.output, first), before, 1 - before, name in blocks, inner))
    preferred = net.paper_tap if isinstance(net, ResNet) else None
    facts = first.flops, first.logits.shape[-1], first.logits.dim() > 2
    return Inspection(type(net).__name__, tuple(taps), refused, *facts, preferred)


def taps_to_read(
    net: nn.Module, tap: str | Sequence[str] | None, images: Inputs
) -> tuple[list[str], Layout | None, Tap | None]:
    """The taps that a bridge reads, given or chosen, the layout of their features, if known, and `last_map`."""
    taps = listed_taps(net, tap)
    if isinstance(net, ResNet) and (taps or net.paper_tap):
        return taps or [str(net.paper_tap)], None, None  # needs no inspection, and recipes plan many bridges
    inspected, last = find_taps(net, images), None
    if not taps:
        taps, last = [inspected.chosen.name], inspected.last_map
        if inspected.chosen.before < EARLY:
            why = "; ".join(f"{name} {reason}" for name, reason in inspected.refused.items()) or "there are none"
            warnings.warn(
                f"The small network reads '{taps[0]}', before {1 - inspected.chosen.before:.0%} of the network's "
                f"multiply-adds, since later layers cannot be read ({why}); choose another place with tap=.",
                stacklevel=4,
            )
    layouts = {known.name: known.layout for known in inspected.taps}
    if len({layouts.get(name) for name in taps}) > 1:
        raise ModebridgeError(
            f"Expected the taps of a bridge to have features of one layout, but got {[layouts.get(n) for n in taps]}; "
            "choose others."
        )
    return taps, layouts.get(taps[0]), last


def listed_taps(net: nn.Module, tap: str | Sequence[str] | None) -> list[str]:
    """Given taps of a network as a list; empty if they are to be chosen."""
    taps = [tap] if isinstance(tap, str) else tap or []
    if not isinstance(taps, Sequence) or len(set(taps)) < len(taps) or not all(isinstance(name, str) for name in taps):
        got = type(tap).__name__ if isinstance(tap, nn.Module) else tap
        raise ModebridgeError(
            f"Expected tap to be a name or a list of different names, but got {got}; pass one such as 'layer2', see "
            "inspect."
        )
    for name in taps:
        check_tap(net, name)
    return list(taps)


def _find_blocks(net: nn.Module, watched: ForwardTrace) -> list[str]:
    """The names of a network's blocks: repeated children of its lists, without stages that only hold other blocks.

    A block is a child of an `nn.Sequential` or `nn.ModuleList` that has submodules and whose class occurs again, or a
    module of such a class that holds such lists as branches. A stage returns the output of its last block. A block
    that holds lists does not (it adds a shortcut), or at least not every block of its class does.
    """
    kinds = Counter(type(module) for module in net.modules() if module is not net)
    ends: dict[type[nn.Module], bool] = {}

    def find(module: nn.Module, prefix: str, stages: Container[type[nn.Module]]) -> list[str]:
        blocks: list[str] = []
        for name, child in module.named_children():
            inside = find(child, f"{prefix}{name}.", stages)
            seen = watched.seen.get(prefix + name)
            transparent = bool(inside) and (isinstance(child, LISTS) or type(child) in stages)
            listed = isinstance(module, LISTS) and any(True for _ in child.children())
            if seen is None or transparent or kinds[type(child)] < 2 or not (listed or inside):
                blocks += inside
                continue
            blocks.append(prefix + name)
            # The same tensor at the same version: torchvision's mobile networks add their shortcut in place.
            inner = [watched.seen[block] for block in inside]
            same = any(block.output is seen.output and block.version == seen.version for block in inner)
            ends[type(child)] = ends.get(type(child), True) and same
        return blocks

    # The first pass, in which nothing counts as a stage, finds the classes that are stages.
    find(net, "", ())
    return find(net, "", [kind for kind, end in ends.items() if end])


def _reason(name: str, first: ForwardTrace, second: ForwardTrace) -> str | None:
    """Why a submodule cannot be tapped, as the end of a sentence; None if it can."""
    if name not in first.seen or name not in second.seen:
        return "never runs"
    seen, output, again = first.seen[name], first.seen[name].output, second.seen[name].output
    if seen.runs > 1:
        return f"runs {seen.runs} times"
    if output is None or again is None:
        return f"returns {seen.kind}, not a tensor"
    assert first.logits is not None
    # By storage, which exists on the meta device too: the logits may be a view of the output.
    if output.untyped_storage()._cdata == first.logits.untyped_storage()._cdata:
        return "returns the logits themselves"
    if output.shape[:1] != (1,) or again.shape[:1] != (2,):
        return "does not keep the batch on its first axis"
    if output.shape[1:] != again.shape[1:]:
        return "returns another shape for another batch size"
    if not output.is_floating_point():
        return f"gives {output.dtype}, not floats"
    if first.logits.dim() > 2 and output.dim() != first.logits.dim():
        return f"returns a feature of shape {tuple(output.shape[1:])}, without the places of the logits"
    if not 2 <= output.dim() <= 5 or not output.numel():
        return f"returns a feature of shape {tuple(output.shape[1:])}, for which there is no bridge"
    return "is changed in place by a later layer" if seen.changed else None


def _layout(output: Tensor, watched: ForwardTrace) -> Layout:
    if output.dim() == 5:
        return "volume"
    if output.dim() == 4:
        return "map, channels last" if watched.channels_last(tuple(output.shape[1:])) else "map"
    if output.dim() == 3:
        return "sequence" if tuple(output.shape[1:]) in watched.first else "tokens"
    return "vector"


def _pooled(tap: Tap) -> bool:
    # The axis of the channels; all other axes are positions.
    channels = 0 if tap.layout in ("map", "sequence", "volume") else len(tap.shape) - 1
    return math.prod(size for axis, size in enumerate(tap.shape) if axis != channels) == 1
