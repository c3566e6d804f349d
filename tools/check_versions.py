"""The tests with the oldest torch that pyproject.toml declares and with the newest that we know: `make test-versions`.

Each pair goes into an environment of its own, which is removed. What cannot be installed is passed over, and named.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAIRS = (("2.10.0", "0.25.0"), ("2.15.0", "0.29.2"))
"""torch and torchvision."""
FREE = 20 * 2**30
"""Bytes: with CUDA packages an environment takes half of it."""
SECONDS = 900
"""For an installation (3 minutes), and for the tests (5)."""


def main() -> None:
    pins = (ROOT / "constraints.txt").read_text()
    free = [line for line in pins.splitlines() if not re.match("(torch|torchvision|sympy)==", line)]  # torch pins sympy
    failed = [pair for pair in PAIRS if not passes(free, *pair)]
    sys.exit(f"The tests fail with torch {', '.join(torch for torch, _ in failed)}." if failed else 0)


def passes(pins: list[str], torch: str, torchvision: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        if shutil.disk_usage(folder).free < FREE:
            say(f"torch {torch}: passed over, there is too little space for it")
            return True
        python, constraints = Path(folder) / "bin" / "python", Path(folder) / "constraints.txt"
        venv.create(folder, with_pip=True)
        constraints.write_text("\n".join([*pins, f"torch=={torch}", f"torchvision=={torchvision}"]))
        install = (python, "-m", "pip", "install", "--quiet", "-c", constraints, "-e", f"{ROOT}[dev]", "torchvision")
        if not done(*install):
            say(f"torch {torch}: passed over, it cannot be installed here")
            return True
        say(f"torch {torch}:")
        return done(python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadscope", "-p", "no:cacheprovider")


def say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


def done(*command: object) -> bool:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        return not subprocess.run([*map(str, command)], cwd=ROOT, env=environment, timeout=SECONDS).returncode
    except subprocess.TimeoutExpired:
        return False


if __name__ == "__main__":
    main()
