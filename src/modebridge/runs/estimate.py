"""How much work a recipe or some of its members are, and how long they take on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from math import inf

import torch
from torch import Tensor, nn

from modebridge.errors import ModebridgeError
from modebridge.members import BASES, Artefact, Setting, artefacts_behind, members_of, parse_member, trained_alike
from modebridge.nets import ResNet, Tapped, spec_of
from modebridge.recipes import Recipe, facts_of
from modebridge.scoring import Effort, module_cost

__all__ = ["effort_of", "member_times", "rate_here", "seconds_here", "work_of"]

# Speed-up of a compiled bf16 step of several networks over an eager one, measured on one H200 (docs/performance.md).
COMPILED_GAIN = 10.0

BATCH, REPEATS = 64, 7
"""Images per forward pass, and passes, when members are timed."""


def work_of(recipe: Recipe) -> dict[str, float]:
    """The multiply-adds of training everything in a recipe, by stage, counted without data or training."""
    facts = facts_of(recipe)
    if facts is None:
        raise ModebridgeError(
            f"Expected a named data set to count the work of {recipe.name}, but got '{recipe.data.name[:80]}'; run it "
            "with --plan instead."
        )
    setting = Setting(recipe)
    work: dict[str, float] = {}
    for kind, epochs, group in trained_alike(members_of(recipe), recipe):
        steps = facts.counts["train"] * epochs
        work[kind.stage] = work.get(kind.stage, 0.0) + kind.work(group, setting) * steps
    return work


def seconds_here(recipes: Sequence[Recipe]) -> dict[str, float]:
    """An estimate of each recipe's training time on this machine, from a few steps of one network timed now."""
    rates: dict[tuple[bool, bool], float] = {}
    seconds: dict[str, float] = {}
    for recipe in recipes:
        key = recipe.net == "digits", recipe.device == "auto"
        if key not in rates:
            rates[key] = rate_here(recipe)
        seconds[recipe.name] = sum(work_of(recipe).values()) / rates[key]
    return seconds


def rate_here(recipe: Recipe) -> float:
    """Multiply-adds per second of training on this machine, from a few steps of a network like the recipe's."""
    device = torch.device("cuda" if torch.cuda.is_available() and recipe.device == "auto" else "cpu")
    # The digits network is so small that its overhead differs; all others are timed with CIFAR-10's.
    small = recipe.net == "digits"
    spec = spec_of("digits" if small else "cifar10", "bn", 10)
    net = ResNet(spec, torch.Generator().manual_seed(0)).to(device).train()
    batch = 50 if small else (128 if device.type == "cuda" else 16)
    images = torch.rand(batch, *spec.image, device=device)

    def step() -> None:
        net(images).sum().backward()

    rate = 3 * module_cost(net, spec.image).flops * batch / _timed(step, device, 3)
    return rate * (COMPILED_GAIN if device.type == "cuda" else 1.0)


def effort_of(setting: Setting, names: Iterable[str], have: int = 0, most: float = inf) -> Effort:
    """The training cost of members, in epochs of one network, counted part by part.

    Bridges and students trained in one pass share their frozen networks; counting them one by one ignores that, so the
    result is slightly too high.

    Args:
        setting: the network and the recipe.
        names: names of the members.
        have: number of modes, from mode 0 on, that are already trained.
        most: maximum training, in epochs.
    """
    recipe = setting.recipe
    if not 0 <= have <= recipe.modes:
        raise ModebridgeError(
            f"Expected to have between 0 and {recipe.modes} of the run's modes, but got {have}; change it."
        )
    existing = {BASES[recipe.base](k) for k in range(have)}
    needed = {
        name: [one for one in artefacts_behind([parse_member(name)], recipe) if one not in existing] for name in names
    }
    parts: dict[str, Artefact] = {one.place: one for artefacts in needed.values() for one in artefacts}
    unit = 3 * setting.base_cost.flops
    epochs = {
        place: type(one).work([one], setting) * one.epochs(recipe) / unit if one.epochs(recipe) else 0.0
        for place, one in parts.items()
    }
    return Effort({name: frozenset(one.place for one in artefacts) for name, artefacts in needed.items()}, epochs, most)


@torch.no_grad()
def member_times(setting: Setting, members: Sequence[str]) -> dict[str, float]:
    """The measured forward time of each member, relative to one base network, on this machine's CPU or GPU.

    A bridge is timed on precomputed features, as it runs in an ensemble.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = setting.net.to(device).eval()
    example = setting.example
    assert isinstance(example, Tensor)
    images = torch.rand(BATCH, *example.shape[1:], device=device)
    base = _forward(net, [images], device)
    relative: dict[str, float] = {}
    features: dict[str, Tensor] = {}
    times: dict[str, float] = {}
    for name in members:
        member = parse_member(name)
        whole = member.whole(setting)
        if whole is not None:
            times[name] = _forward(whole.to(device).eval(), [images], device) / base
            continue
        part = member.body(setting)
        if part is None:  # by counted FLOPs: a network takes the time of one
            times[name] = member.cost(setting).flops / setting.base_cost.flops
            continue
        missing = [tap for tap in part.taps if tap not in features]
        features |= Tapped(net, missing)(images)[1] if missing else {}
        description = repr(part.body)
        if description not in relative:
            taken = _forward(part.body.to(device).eval(), [features[tap] for tap in part.taps] * part.reads, device)
            relative[description] = taken / base
        times[name] = relative[description]
    return times


def _forward(net: nn.Module, inputs: Sequence[Tensor], device: torch.device) -> float:
    return _timed(lambda: net(*inputs), device, REPEATS)


def _timed(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The shortest time of several runs after a warm-up: other programs on the machine only make it longer."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])
