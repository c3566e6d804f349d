"""A pseudo-terminal as stderr, and the smallest training to look at in it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
import torch
from torch import nn

DATA = [(torch.rand(8, 12, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3)]

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def perceptron(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


class Screen:
    """What was written to the terminal; complete once the block has ended."""

    text = ""

    @property
    def bars(self) -> int:
        """The number of bars: each hides the cursor."""
        return self.text.count(HIDE)

    @property
    def rows(self) -> list[str]:
        """The rows as they were drawn, without escape codes."""
        plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", self.text)
        return [row.rstrip() for row in re.split(r"[\r\n]+", plain) if row.strip()]


@contextmanager
def terminal(columns: int = 100) -> Iterator[Screen]:
    master, slave = os.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(master, 4096):
                chunks.append(chunk)
        except OSError:  # Linux's end of file
            pass

    # In a thread, since the terminal's buffer is small.
    reader = Thread(target=read)
    reader.start()
    screen = Screen()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "JUPYTER_COLUMNS"):
            patch.delenv(name, raising=False)
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", str(columns))
        try:
            with os.fdopen(slave, "w", encoding="utf-8") as stderr:
                patch.setattr(sys, "stderr", stderr)
                yield screen
                assert sys.stderr is stderr  # a bar gives it back
        finally:
            reader.join()
            os.close(master)
            screen.text = b"".join(chunks).decode()
