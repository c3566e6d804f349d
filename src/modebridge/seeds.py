"""Named random generators, seeded from the run's seed; every random choice uses one."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

T = TypeVar("T")

_LOCK = threading.RLock()


def seed_for(seed: int, *names: str | int) -> int:
    """A seed for one purpose: different names give unrelated numbers, the same name the same numbers on any machine.

    >>> seed_for(0, "mode", 1) == seed_for(0, "mode", 1), seed_for(0, "mode", 1) == seed_for(0, "mode", 2)
    (True, False)
    """
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator for one purpose; drawing on the CPU gives every device the same numbers."""
    return torch.Generator().manual_seed(seed_for(seed, *names))


@contextmanager
def borrowed(seed: int, device: torch.device | None = None) -> Iterator[Callable[[], bool]]:
    """Seed torch's global generators and restore them afterwards, for third-party modules that draw from them.

    They are global: one thread at a time holds them. The generator of a GPU is borrowed too if it is given. Yields a
    function that returns whether anything was drawn.

    >>> before = torch.get_rng_state()
    >>> with borrowed(0) as drawn:
    ...     print(drawn(), torch.rand(1), drawn())
    False tensor([0.4963]) True
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    with _LOCK:
        generators = [torch.default_generator]
        if device is not None and device.type == "cuda":
            generators.append(cuda_generator(device))
        before = [each.get_state() for each in generators]
        for each in generators:
            each.manual_seed(seed)
        seeded = [each.get_state() for each in generators]

        def drawn() -> bool:
            return any(not torch.equal(each.get_state(), at) for each, at in zip(generators, seeded, strict=True))

        try:
            yield drawn
        finally:
            for each, state in zip(generators, before, strict=True):
                each.set_state(state)


def drawn(items: Iterable[T], seed: int, *names: str | int) -> Iterator[T]:
    """Iterate with the global generators of torch, NumPy and Python seeded for a purpose, and give them back.

    >>> loader = torch.utils.data.DataLoader(range(9), shuffle=True)
    >>> [int(item) for item in drawn(loader, 0)] == [int(item) for item in drawn(loader, 0)]
    True
    """
    start = seed_for(seed, *names)
    numpys, pythons = np.random.RandomState(start % 2**32), random.Random(start)
    state = generator(seed, *names).get_state(), numpys.get_state(), pythons.getstate()
    iterator: Iterator[T] | None = None
    while True:
        with _LOCK:
            before = _global_state()
            _set_global_state(*state)
            try:
                iterator = iter(items) if iterator is None else iterator
                item = next(iterator)
            except StopIteration:
                return
            finally:
                state = _global_state()
                _set_global_state(*before)
        yield item


def _global_state() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _set_global_state(torchs: Any, numpys: Any, pythons: Any) -> None:
    torch.set_rng_state(torchs)
    np.random.set_state(numpys)
    random.setstate(pythons)


def cuda_generator(device: torch.device) -> torch.Generator:
    """The default generator of a GPU, which its layers draw from."""
    torch.cuda.init()  # type: ignore[no-untyped-call]  # creates the generators
    index = torch.cuda.current_device() if device.index is None else device.index
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator
