"""Build the wheel and the sdist, check them, and use the wheel as a user does who has nothing else.

    .venv-package/bin/python tools/check_package.py      (or `make package`, which makes that environment)

The wheel goes into a bare environment with the core dependencies alone, and the demo runs in an empty folder elsewhere.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
LARGEST = 800_000
"""Bytes: a guard against weights and pictures that slip in."""
DEMO = ("modes=2", "data.train=100", "data.valid=100", "mode.epochs=2", "curve.epochs=2", "bridge.epochs=2")
SECONDS = 600


def main() -> None:
    os.environ["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")  # holds for the environments that `build` makes, too
    os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    for name in ("PYTHONPATH", "PYTHONHOME"):
        os.environ.pop(name, None)
    version = re.findall(r'^__version__ = "(.+)"$', (ROOT / "src/modebridge/__init__.py").read_text(), re.MULTILINE)[0]
    with tempfile.TemporaryDirectory() as folder:
        wheel, sdist = build()
        check_contents(wheel, sdist, version)
        python = install(wheel, Path(folder) / "bare")
        place = Path(folder) / "elsewhere"
        place.mkdir()
        use(python, place, version)
    sys.stdout.write(f"The package is sound: {wheel.name}, {sdist.name} in dist/.\n")


def build() -> tuple[Path, Path]:
    """The sdist, and the wheel built from it."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    run(sys.executable, "-m", "check_wheel_contents", wheel)
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path, version: str) -> None:
    """Exactly the files that git knows, under the version that the library has."""
    for file in (wheel, sdist):
        size = file.stat().st_size
        expect(size <= LARGEST, f"{file.name} to have at most {LARGEST:,} bytes, but it has {size:,}")
    listed = subprocess.run(["git", "ls-files", "src/modebridge"], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = {name.removeprefix("src/") for name in listed.stdout.split()}
    with zipfile.ZipFile(wheel) as files:
        names = {name for name in files.namelist() if ".dist-info/" not in name}
        metadata = email.message_from_bytes(files.read(f"modebridge-{version}.dist-info/METADATA"))
    expect(names == ours, f"the wheel to hold the files that git knows, but these differ: {sorted(names ^ ours)}")
    expect(metadata["Version"] == version, f"the metadata to say {version}, but they say {metadata['Version']}")
    with tarfile.open(sdist) as files:
        tops = {name.split("/")[1] for name in files.getnames() if "/" in name}
    strange = tops & {"results", "benchmarks", "tests", "docs", "runs", ".venv", ".venv-package"}
    expect(not strange, f"the sdist without bulk, but it has {sorted(strange)}")


def install(wheel: Path, environment: Path) -> Path:
    """A new environment with the wheel and its core dependencies; its Python."""
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--no-compile")  # few of torch's files are used here
    run(*pip, wheel)
    run(python, "-m", "pip", "check")
    return python


def use(python: Path, place: Path, version: str) -> None:
    """What the README shows, in an empty folder outside of the repository."""
    program = python.with_name("modebridge")
    found = run(python, "-c", "import modebridge; print(modebridge.__file__)", place=place).stdout
    expect(str(python.parents[1]) in found, f"the installed package to be used, but it is {found.strip()}")
    for command in ((program,), (python, "-m", "modebridge")):
        answer = run(*command, "--version", place=place)
        expect((answer.stdout, answer.stderr) == (f"{version}\n", ""), f"--version to print {version} and nothing else")
    settings = [word for one in DEMO for word in ("--set", one)]
    run(program, "run", *settings, place=place)
    for name in ("report.html", "results.json", "results.md", "recipe.toml"):
        expect((place / "runs" / "digits" / name).is_file(), f"the demo to write {name}")

    (place / "some.onnx").write_bytes(b"")
    for words in (("export", "runs/digits", "fast.onnx"), ("predict", "some.onnx", "--examples")):
        answer = run(program, *words, place=place, code=2)
        expect("pip install" in answer.stderr, f"`modebridge {words[0]}` to say what to install: {answer.stderr}")
        expect("onnxruntime" in answer.stderr, f"ONNX Runtime among it: {answer.stderr}")
        expect("Traceback" not in answer.stderr, "no trace")
    run(program, "export", "runs/digits", "fast.pt2", place=place)
    answer = run(program, "predict", "fast.pt2", "--examples", "--json", place=place)
    expect(len(answer.stdout.splitlines()) == 3, f"three predictions: {answer.stdout}{answer.stderr}")


def run(*command: str | Path, place: Path = ROOT, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The output of a command that has to exit with this code."""
    words = [str(word) for word in command]
    sys.stderr.write(f"$ {' '.join(words)}\n")
    answer = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False, timeout=SECONDS)
    expect(answer.returncode == code, f"`{' '.join(words)}` to exit with {code}:\n{answer.stdout}{answer.stderr}")
    return answer


def expect(held: bool, what: str) -> None:
    if not held:
        sys.exit(f"Expected {what}")


if __name__ == "__main__":
    main()
