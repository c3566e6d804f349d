"""Every random choice comes from a generator with a name, seeded from the run's seed."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

__all__ = ["borrowed", "generator", "seed_for"]

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
def borrowed(seed: int) -> Iterator[Callable[[], bool]]:
    """Torch's global CPU generator at a seed, then where it was: for modules of others, which draw from it.

    It is everybody's, so this is for one thread at a time. It gives a function that says whether anything was drawn.

    >>> before = torch.get_rng_state()
    >>> with borrowed(0) as drawn:
    ...     print(drawn(), torch.rand(1), drawn())
    False tensor([0.4963]) True
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    with _TURN:
        everybodys = torch.default_generator
        before = everybodys.get_state()
        everybodys.manual_seed(seed)
        begin = everybodys.get_state()
        try:
            yield lambda: not torch.equal(everybodys.get_state(), begin)
        finally:
            everybodys.set_state(before)
