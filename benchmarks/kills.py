"""Kill and restart the demo many times, and compare the result with an undisturbed run.

    python benchmarks/kills.py --kills 100

Prints how often it was killed and whether every weight file has the same bytes; exits with 1 if not.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path


def weights(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.glob("*/*/weights.safetensors"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="seed of the times of the kills")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as scratch:
        alone, killed = Path(scratch) / "alone", Path(scratch) / "killed"
        command = [sys.executable, "-m", "modebridge", "run", "--out"]
        subprocess.run([*command, str(alone)], check=True, stdout=subprocess.DEVNULL)
        kills, rounds = 0, 0
        while True:
            process = subprocess.Popen([*command, str(killed)], stdout=subprocess.DEVNULL)
            try:
                process.wait(timeout=chance.uniform(4.0, 20.0) if kills < arguments.kills else None)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                continue
            rounds += 1
            same = process.returncode == 0 and weights(killed) == weights(alone)
            print(f"{kills} kills, {rounds} runs finished, same bytes: {same}", flush=True)
            if not same:
                sys.exit(1)
            if kills >= arguments.kills:
                return
            # Finished early: start another run, to be killed as well.
            killed = killed.with_name(f"killed-{rounds}")


if __name__ == "__main__":
    main()
