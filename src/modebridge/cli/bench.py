"""`modebridge bench`: measured latency and throughput next to FLOPs."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from modebridge.bridges import Bridge, build_bridge
from modebridge.cli.terminal import Screen, listed, note, say, silence_compiler, warn
from modebridge.deploy import DeployedEnsemble
from modebridge.deploy.bench import Candidate, Result, time_all, time_file, usable_backends
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError, near, plural
from modebridge.members import ControlMember, ModeMember, Setting, SmallNetwork, parse_member, row_plans
from modebridge.modes import Mode
from modebridge.recipes import check_recipe, read_recipe
from modebridge.report import plain_table
from modebridge.runs import existing, find_recipe_of, machine, setting_for
from modebridge.seeds import generator, seed_for

BUSY = 0.25
"""Load per core before the start above which the machine counts as busy."""
MOST_MODES = 4
MAX_BATCH = 10**6


def bench_target(
    target: str,
    batches: str,
    *,
    device: str,
    backends: str | None,
    only: str | None,
    seconds: float,
    bf16: bool,
    as_json: bool,
) -> None:
    """Time a run folder, an exported file or a recipe; print each table as soon as it is complete."""
    sizes, device = _sizes(batches), _device(device)
    if bf16 and device == "cpu":
        raise ModebridgeError("Expected a CUDA device for --bf16, but got the CPU; leave it out.")
    if not 0 < seconds < float("inf"):
        raise ModebridgeError(f"Expected --seconds to be above 0, but got {seconds}; try 2.")
    names = listed("--only", only)
    chosen, missing = usable_backends(device, listed("--backends", backends))
    about = _surroundings(device, bf16)
    place, folder = Path(target), None

    def shown(results: Sequence[Result]) -> None:
        if not as_json:
            _print(results, about)

    if place.suffix in (".onnx", ".pt2"):
        if device != "cpu" or backends or only:
            raise ModebridgeError(
                f"Expected --device cpu without --backends and --only for '{place}', which can only run as a whole on "
                "the CPU, but got others; leave them out."
            )
        about = {"what": place.name, **about}
        results = time_file(DeployedEnsemble.load(place), sizes, seconds=seconds, shown=shown)
    else:
        folder = existing(place) if place.is_dir() else None
        recipe = find_recipe_of(folder)[0] if folder is not None else read_recipe(target)[0]
        check_recipe(recipe)
        note("Building the networks and counting their FLOPs ...")
        candidates, image = candidates_for(setting_for(recipe, folder=folder))
        candidates = _chosen(candidates, names)
        about = {"what": f"networks of {target}, random weights (time does not depend on them)", **about}
        warn(*missing)
        rows = len(candidates) * len(chosen) * len(sizes)
        say(f"{plural(rows, 'row')}, at least {rows * seconds:,.0f} s, plus compilation.")
        if set(chosen) & {"compiled", "graphs"}:
            silence_compiler()
        options: Any = {"device": device, "dtype": torch.bfloat16 if bf16 else torch.float32, "seconds": seconds}
        results = []
        for backend in chosen:
            results += time_all(candidates, image, backend, sizes, **options, log=say, shown=shown)
    record = {**about, "rows": [_row(result) for result in results]}
    if as_json:
        Screen().print_data(record)
    # Some rows do not replace all rows.
    if folder is not None and not only:
        if folder.writes:
            name = f"bench/{device}{'-bf16' if bf16 else ''}.json"
            folder.write_record(name, record)
            say(f"Written: {folder.path / name}")
        else:
            warn(f"'{folder.path}' is read-only: the tables are printed but not saved.")


def candidates_for(setting: Setting) -> tuple[list[Candidate], tuple[int, ...]]:
    """The rows of a recipe's results that are up to four networks and bridges of the first size, DE-1 first.

    And the shape of its images. Weights are random: time does not depend on them.
    """
    recipe, example = setting.recipe, setting.example
    assert isinstance(example, torch.Tensor)
    net = setting.network.build(generator(0, "net"))
    count = min(recipe.modes, MOST_MODES)
    modes = [Mode.from_module(setting.network.build(generator(0, "mode", k))) for k in range(count)]
    bridges: dict[str, Bridge] = {}
    rows: dict[str, tuple[list[Mode], list[Bridge]]] = {}
    for row in row_plans(recipe):
        members = [parse_member(name) for name in row.members]
        networks = [one for one in members if isinstance(one, ModeMember) and one.number < count]
        small = [one for one in members if isinstance(one, SmallNetwork) and not isinstance(one, ControlMember)]
        small = [one for one in small if one.size == recipe.sizes[0] or one.wide]
        if row.average_cost is not None or len(networks) + len(small) < len(members):
            continue
        for one in small:
            heads, reads = one.heads(recipe), [modes[mode.number] for mode in one.reads if isinstance(mode, ModeMember)]
            sizing = setting.sizing("I" if len(reads) == 1 else "II", one.size, heads, one.wide)
            seed = seed_for(0, one.name)
            if one.name not in bridges:
                bridges[one.name] = build_bridge(net, example, reads, heads, name=one.name, seed=seed, **sizing)
        # `--only` separates names by commas.
        name = row.name.replace(",", "")
        rows[name] = [modes[one.number] for one in networks], [bridges[one.name] for one in small]
    taps = tuple(sorted({tap for bridge in bridges.values() for tap in bridge.taps}))
    candidates = [Candidate(name, partial(Ensemble, net, *parts), taps) for name, parts in rows.items()]
    return candidates, tuple(example.shape[1:])


def _surroundings(device: str, bf16: bool) -> dict[str, Any]:
    """Machine, versions, threads, load and date, without which a measured time means little."""
    facts: dict[str, Any] = dict(machine())
    try:
        facts["onnxruntime"] = version("onnxruntime")
    except PackageNotFoundError:
        facts["onnxruntime"] = ""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.machine()
    facts["device"] = f"cuda, {torch.cuda.get_device_name()}" if device == "cuda" else f"cpu, {processor}"
    tf32 = device == "cuda" and torch.backends.cudnn.allow_tf32  # torch's default on GPUs that support it
    facts["precision"] = "bf16" if bf16 else "fp32, convolutions in TF32" if tf32 else "fp32"
    # The load of the last minute; not available on Windows.
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load > BUSY * cores:
        warn(
            f"The machine is busy: load {load:.1f} on {plural(cores, 'core')} before the start. Ratios between rows "
            "are still meaningful, absolute times are not."
        )
    return {**facts, "threads": torch.get_num_threads(), "load": load}


def _print(results: Sequence[Result], about: dict[str, Any]) -> None:
    """The table for one backend and one batch size, and where it was measured."""
    title = f"{results[0].backend}, batch {results[0].batch}"
    table = plain_table(title, "ms", "quartiles", "images/s", "time", "quartiles", "FLOPs", "points over")
    for one in results:
        took, part = one.timing.seconds, one.ratio
        cells = [_ms(took.median), f"{_ms(took.low)}-{_ms(took.high)}", f"{one.images_per_second:,.0f}"]
        cells += [f"x{part.median:.3f}", f"{part.low:.2f}-{part.high:.2f}", f"x{one.flops:.3f}", f"{one.over:+.1f}"]
        table.add_row(one.name, *cells)
    versions = ", ".join(f"{name} {about[name]}" for name in ("torch", "onnxruntime", "modebridge") if about[name])
    threads, console = plural(about["threads"], "thread"), Screen()
    console.print(table)
    console.print(
        f"{about['what']}; {about['device']}, {threads}, load {about['load']:.2f} before, {about['precision']}; "
        f"{versions}; {about['made']}",
        style="dim",
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def _row(one: Result) -> dict[str, Any]:
    timing = {"seconds": one.timing.seconds._asdict(), "fastest": one.timing.fastest, "calls": one.timing.calls}
    timing |= {"images_per_second": one.images_per_second, "ratio": one.ratio._asdict()}
    return {"name": one.name, "backend": one.backend, "batch": one.batch, **timing, "flops": one.flops}


def _chosen(candidates: Sequence[Candidate], names: Sequence[str] | None) -> list[Candidate]:
    """One network, which is the unit, and the named rows."""
    if names is None:
        return list(candidates)
    known = [one.name for one in candidates]
    for name in names:
        if name not in known:
            raise ModebridgeError(f"Expected --only to name rows of the table, but got '{name}'; {near(name, known)}")
    return [one for k, one in enumerate(candidates) if k == 0 or one.name in names]


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in listed("--batch", text) or []]
    except ValueError:  # also the ModebridgeError for an empty list
        sizes = []
    if not sizes or min(sizes) < 1 or max(sizes) > MAX_BATCH:
        raise ModebridgeError(
            f"Expected --batch to list numbers from 1 to {MAX_BATCH:,}, but got '{text[:80]}'; try 1,8,64."
        )
    return list(dict.fromkeys(sizes))


def _device(name: str) -> str:
    if name not in ("auto", "cpu", "cuda"):
        raise ModebridgeError(f"Expected --device to be auto, cpu or cuda, but got '{name}'; choose one.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ModebridgeError("Expected a CUDA device, but torch finds none on this machine; use --device cpu.")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
