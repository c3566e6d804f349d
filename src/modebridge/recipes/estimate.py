"""How much work a recipe is, and how long that takes here; how long one member takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor, nn

from modebridge.bridges import body_like, last_blocks_tap
from modebridge.evaluate import feature_shapes, module_cost
from modebridge.nets import ResNet, spec_of
from modebridge.recipes.config import Recipe
from modebridge.recipes.costs import kind_of_body, part_cost, spec_for
from modebridge.recipes.members import Member, members_of
from modebridge.recipes.run_data import facts_of

__all__ = ["Work", "member_times", "seconds_here", "work_of"]

# One compiled bf16 step of several networks against an eager one, measured on one H200 (docs/performance.md).
COMPILED_GAIN = 10.0


@dataclass(frozen=True)
class Work:
    """The multiply-adds of training everything that a recipe names, by stage; a backward pass counts as two forward."""

    modes: float
    curves: float
    bridges: float

    @property
    def total(self) -> float:
        """All stages."""
        return self.modes + self.curves + self.bridges


def work_of(recipe: Recipe) -> Work:
    """Count the work of a recipe without data and without training."""
    # Norms do not count, so one of them serves both and is counted once.
    spec = replace(spec_for(recipe), norm="bn")
    base = part_cost(spec).flops
    facts = facts_of(recipe)
    images = facts.counts["train"] if facts is not None else 0
    bridges = [member for member in members_of(recipe) if member.is_bridge]
    counts = Counter((kind_of_body(member), recipe.slim(member.size)) for member in bridges)
    trained = sum(count * 3 * part_cost(spec, kind, slim).flops for (kind, slim), count in counts.items())
    read = {k for member in bridges for k in member.reads}
    frozen = (len(read) + len({member.pair for member in bridges})) * base
    return Work(
        modes=3 * base * images * recipe.mode.epochs * recipe.modes,
        curves=3 * base * images * recipe.curve.epochs * len(recipe.curves()),
        bridges=(frozen + trained) * images * recipe.bridge.epochs,
    )


def seconds_here(recipes: Sequence[Recipe]) -> dict[str, float]:
    """An estimate of each recipe's training time on this machine, from a few steps of one network timed now."""
    found: dict[str, float] = {}
    gpu = torch.cuda.is_available()
    rates: dict[str, float] = {}
    for recipe in recipes:
        device = torch.device("cuda" if gpu and recipe.device == "auto" else "cpu")
        # The digits network is so small that its overhead differs; the others are timed by CIFAR-10's.
        kind = "digits" if recipe.net == "digits" else "cifar10"
        key = f"{kind} {device.type}"
        if key not in rates:
            rates[key] = _rate(kind, device) * (COMPILED_GAIN if device.type == "cuda" else 1.0)
        found[recipe.name] = work_of(recipe).total / rates[key]
    return found


def _rate(kind: str, device: torch.device) -> float:
    """Multiply-adds a second of eager training steps."""
    spec = spec_of(kind, "bn", 10)
    net = ResNet(spec, torch.Generator().manual_seed(0)).to(device).train()
    batch = 50 if kind == "digits" else (128 if device.type == "cuda" else 16)
    images = torch.rand(batch, *spec.image, device=device)

    def step() -> None:
        net(images).sum().backward()

    return 3 * module_cost(net, spec.image).flops * batch / _timed(step, device, 3)


def member_times(recipe: Recipe, members: Sequence[str], batch: int = 64, repeats: int = 7) -> dict[str, float]:
    """The measured forward time of each member, in units of one base network, on this machine's CPU or GPU.

    A bridge is timed on features that are there already, as it runs in an ensemble.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    spec = spec_for(recipe)
    net = ResNet(spec, torch.Generator().manual_seed(0)).to(device).eval()
    tap = last_blocks_tap(spec)
    feature = feature_shapes(net, spec.image, [tap])[tap]
    base = _forward(net, [torch.rand(batch, *spec.image, device=device)], device, repeats)
    known: dict[tuple[str, str], float] = {}
    found: dict[str, float] = {}
    for name in members:
        member = Member.parse(name)
        if not member.is_bridge:
            found[name] = 1.0
            continue
        kind = kind_of_body(member)
        if (kind, member.size) not in known:
            body = body_like(spec, kind, recipe.slim(member.size)).to(device).eval()
            inputs = [torch.rand(batch, *feature, device=device) for _ in range(2 if kind == "II" else 1)]
            known[kind, member.size] = _forward(body, inputs, device, repeats) / base
        found[name] = known[kind, member.size]
    return found


@torch.no_grad()
def _forward(net: nn.Module, inputs: Sequence[Tensor], device: torch.device, repeats: int) -> float:
    return _timed(lambda: net(*inputs), device, repeats)


def _timed(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median time of some work, after one round to warm up."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return median(times[1:])
