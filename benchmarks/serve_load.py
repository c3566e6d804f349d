"""Load test of a served file on loopback: 32 concurrent clients that check every response.

    python benchmarks/serve_load.py                              # untrained networks of digits: one minute
    python benchmarks/serve_load.py --recipe cifar10 --seconds 10
    python benchmarks/serve_load.py --files base.onnx fast.onnx  # your own files

Exports one network, DE-4, and one network with three small type I bridges, and serves them in turn with
`modebridge serve`. Prints latency, throughput, the mean batch size, and wrong or lost responses; exits with 1 if there
are any.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from modebridge.deploy.deployed import Deployed
from modebridge.deploy.export import export
from modebridge.deploy.image_decoding import from_bytes
from modebridge.errors import plural
from modebridge.recipes import read_recipe
from modebridge.runs.bench_entries import contenders_for, surroundings
from server_load import load_server

SERVED = ("DE-1", "DE-4", "DE-1 + 3 bridges I")


@contextmanager
def served(path: Path, *options: str) -> Iterator[str]:
    """Run a server in its own process group, and yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "modebridge", "serve", str(path), "--port", str(port), *options]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    """Wait until the server is healthy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit(f"The server did not start (exit code {process.poll()}).")


def pictures(count: int, shape: tuple[int, ...]) -> list[bytes]:
    """PNG files that even an untrained network can tell apart: a few large random squares each."""
    channels, height, width = shape
    files = []
    for k in range(count):
        cells = np.random.default_rng(k).integers(0, 256, (3, 3, 3), dtype=np.uint8)
        picture = Image.fromarray(cells).convert("L" if channels == 1 else "RGB")
        file = io.BytesIO()
        picture.resize((width, height), Image.Resampling.NEAREST).save(file, "PNG")
        files.append(file.getvalue())
    return files


def exported(recipe: str, folder: Path) -> dict[str, Path]:
    """Export the three ensembles of a recipe."""
    entered, shape = contenders_for(read_recipe(recipe)[0])
    paths = {}
    for contender in entered:
        if contender.name in SERVED:
            paths[contender.name] = folder / f"{contender.name.replace(' ', '')}.onnx"
            ensemble = contender.make()
            # Untrained networks predict nearly the same for all images, so differences are amplified to reveal mix-ups.
            pixels = torch.from_numpy(np.stack([from_bytes(file, shape) for file in pictures(64, shape)]))
            with torch.no_grad():
                ensemble.temperature.fill_(float(ensemble(pixels).log().std()))
            # This also amplifies rounding in fp32, so the tolerance is larger.
            example = pixels[:1]
            export(ensemble, paths[contender.name], example, uncertainty=False, elastic=False, tolerance=1e-4)
    return {name: paths[name] for name in SERVED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--files", nargs="*", type=Path, help="exported files to serve instead")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds per file")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--timeout-ms", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows, bad = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        named = {path.name: path for path in given.files or ()} or exported(given.recipe, Path(scratch))
        for name, path in named.items():
            deployed = Deployed.load(path)
            shape = tuple(deployed.meta["image"])
            files = pictures(given.images, shape)
            pixels = np.stack([from_bytes(file, shape) for file in files])
            expected = np.asarray(deployed(pixels).probabilities, dtype=np.float64)
            del deployed
            with served(path, "--batch", str(given.batch), "--timeout-ms", str(given.timeout_ms)) as url:
                load_server(url, files, expected, clients=given.clients, seconds=min(1.0, given.seconds))
                load = load_server(url, files, expected, clients=given.clients, seconds=given.seconds)
            bad += load.wrong + load.lost
            low, high = load.latency.low, load.latency.high
            rows.append(
                {
                    "name": name,
                    "p50_ms": 1e3 * load.latency.median,
                    "p5_ms": 1e3 * low,
                    "p95_ms": 1e3 * high,
                    "images_per_second": load.per_second,
                    "mean_batch": load.mean_batch,
                    "asked": load.asked,
                    "wrong": load.wrong,
                    "lost": load.lost,
                }
            )
    about = surroundings("cpu")
    if given.json:
        print(json.dumps({"clients": given.clients, "rows": rows, **about}, indent=1))
    else:
        print(
            f"{given.clients} clients on loopback, batch size at most {given.batch}, {given.timeout_ms:g} ms timeout;"
        )
        cores = plural(os.cpu_count() or 1, "core")
        print(f"{about['device']}, {cores} shared with the clients, onnxruntime {about['onnxruntime']}, ", end="")
        print(f"{about['made']}\n\n| served | p50 ms | p95 ms | images/s | mean batch | requests | wrong | lost |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        for row in rows:
            print(
                f"| {row['name']} | {row['p50_ms']:.1f} | {row['p95_ms']:.1f} | {row['images_per_second']:,.0f} | "
                f"{row['mean_batch']:.1f} | {row['asked']} | {row['wrong']} | {row['lost']} |"
            )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
