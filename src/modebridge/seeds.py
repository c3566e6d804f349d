"""Every random choice comes from a generator with a name, seeded from the run's seed."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

__all__ = ["borrowed", "cuda_generator", "generator", "seed_for"]

_TURN = threading.RLock()


def seed_for(seed: int, *names: str | int) -> int:
    """A seed for one purpose: another name gives unrelated numbers, the same name the same ones on any machine.

    >>> seed_for(0, "mode", 1) == seed_for(0, "mode", 1), seed_for(0, "mode", 1) == seed_for(0, "mode", 2)
    (True, False)
    """
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator for one purpose; draws are made on the CPU so that every device sees the same."""
    return torch.Generator().manual_seed(seed_for(seed, *names))


@contextmanager
def borrowed(seed: int, device: torch.device | None = None) -> Iterator[Callable[[], bool]]:
    """Torch's global generators at a seed, then where they were: for modules of others, which draw from them.

    They are everybody's, so this is for one thread at a time. It gives a function that says whether anything was drawn.

    Args:
        seed: where to put them.
        device: whose generator is borrowed beside the CPU's; None for the CPU's alone.

    >>> before = torch.get_rng_state()
    >>> with borrowed(0) as drawn:
    ...     print(drawn(), torch.rand(1), drawn())
    False tensor([0.4963]) True
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    with _TURN:
        everybodys = [torch.default_generator]
        if device is not None and device.type == "cuda":
            everybodys.append(cuda_generator(device))
        before = [one.get_state() for one in everybodys]
        for one in everybodys:
            one.manual_seed(seed)
        begin = [one.get_state() for one in everybodys]

        def drawn() -> bool:
            return any(not torch.equal(one.get_state(), at) for one, at in zip(everybodys, begin, strict=True))

        try:
            yield drawn
        finally:
            for one, state in zip(everybodys, before, strict=True):
                one.set_state(state)


def cuda_generator(device: torch.device) -> torch.Generator:
    """The generator that layers on a GPU draw from."""
    torch.cuda.init()  # type: ignore[no-untyped-call]  # before that there are none
    index = torch.cuda.current_device() if device.index is None else device.index
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator
