"""Build the site: `make docs`, or `python tools/docs/build.py [--out DIR]`. Needs the extra `docs`, and no network."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from commands import command_page
from execution import pages
from links import problems
from staging import ROOT, stage

STAGED = ROOT / ".work" / "docs" / "source"


def main() -> None:
    """Execute, gather, build, check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="the folder of the site")
    out = parser.parse_args().out.resolve()
    start = time.perf_counter()
    stage(STAGED, {**pages(), "reference/cli.md": command_page()})
    here = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, str(ROOT / "src")]), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--clean", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    wrong = list(problems(out))
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    if wrong:
        sys.exit(f"{len(wrong)} problem{'s' if len(wrong) > 1 else ''} in {out}")
    print(f"Built {out}/index.html in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
