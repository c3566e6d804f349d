"""Build the site in build/site: `make docs`. Needs the extra `docs`, and no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from commands import command_page
from execution import pages
from links import problems
from staging import ROOT, stage

STAGED, SITE = ROOT / ".work" / "docs" / "source", ROOT / "build" / "site"
"""As mkdocs.yml says."""


def main() -> None:
    """Execute, gather, build, check."""
    start = time.perf_counter()
    stage(STAGED, {**pages(), "reference/cli.md": command_page()})
    shutil.rmtree(SITE, ignore_errors=True)
    paths = [str(Path(__file__).parent), str(ROOT / "src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", "mkdocs.yml"]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    wrong = list(problems(SITE))
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    if wrong:
        sys.exit(f"{len(wrong)} problem{'s' if len(wrong) > 1 else ''} in {SITE}")
    print(f"Built {SITE}/index.html in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
