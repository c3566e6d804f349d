"""All options of training in one record, and the engine that they ask for: the only place that knows what a GPU is."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import nn

from modebridge.batches import Mapped, map_inputs
from modebridge.ensembles import Bases
from modebridge.errors import ModebridgeError
from modebridge.nets import is_attentive
from modebridge.nets.quirks import check_runs
from modebridge.training.processes import Processes, find_device, launched
from modebridge.training.progress import Checkpoints, Report
from modebridge.types import Batch, Batches, Draw

MOST = 10**6
"""Upper limit for epochs and for every rate."""
SEEDS = 2**62
"""Upper limit for seeds. Torch's generators take 64 bits, and a run also uses seeds slightly above its own."""
CHOICES = {
    "optimizer": ("auto", "sgd", "adamw"),
    "nesterov": ("no", "standard", "authors"),
    "keep": ("best", "last"),
    "precision": ("auto", "fp32", "bf16"),
}
LEAST: dict[str, float] = dict.fromkeys(("lr", "momentum", "weight_decay", "clip", "mixup", "cutmix"), 0.0)
LEAST |= {"epochs": 0, "warmup": 1, "average_from": 0, "constant_from": 0}
"""Lower limits; those of integers are integers."""
HOW = ("device", "compile", "checkpoints", "callbacks", "progress")
"""Fields that do not determine the numbers, up to rounding."""
PROGRAMS = 512
"""How many programs one process may compile: more than a study has bridges."""

RATES, LARGE = {"sgd": 0.1, "adamw": 0.001}, 0.01

OptimizerFactory: TypeAlias = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

F = TypeVar("F")
T = TypeVar("T")


@dataclass(frozen=True)
class TrainConfig:
    """An optimizer with warm-up and cosine decay, the paper's schedule for everything.

    Args:
        epochs: passes over the training data.
        lr: the peak learning rate; None is 0.1 for SGD and 0.001 for AdamW.
        optimizer: "sgd", as in the paper; "adamw"; "auto", AdamW for networks with attention or layer norm, else and
            for bridges SGD; or a function from a list of parameters to a `torch.optim.Optimizer`, with the rate, which
            follows the schedule, and the decay; not one that needs a closure (LBFGS), or only takes matrices (Muon).
        momentum: momentum of SGD.
        weight_decay: L2 penalty on every parameter, including norms and biases; AdamW does not decay vectors.
        clip: maximum norm of the gradient of all parameters; 0 turns it off.
        nesterov: "no"; "standard" as in torch; "authors": along gradient + buffer, as in their Tiny ImageNet runs.
        warmup: epochs until the peak, at most a quarter of all epochs (see `factor`).
        average_from: the first epoch, counted from 1, whose weights join a running mean that is kept instead of the
            last weights; 76 of 100 epochs is a good choice. 0 turns it off.
        constant_from: the first epoch whose learning rate all later ones have, as in SWA. 0 turns it off.
        keep: "best" on validation, or the "last" epoch.
        seed: seed for what the objective (the r of a curve, mixup) and the networks (dropout, stochastic depth) draw.
        mixup: alpha of per-sample mixup; 0 turns it off, None is the method's default, which is 0 for networks on
            labels.
        cutmix: alpha of CutMix, for images and tokens; 0 and None as for mixup. With mixup as well, each batch gets one
            of the two; if only one of the two is set, the other is off. Not for curves.
        device: "cpu", "cuda", "cuda:1", "mps", or "auto": the network's device, else a GPU if there is one.
        precision: "fp32"; "bf16" for convolutions and products, not for weights and updates; "auto" is bf16 on a GPU.
        compile: whether to compile the losses with torch.compile, which takes most of a minute once per architecture,
            and to replay steps as CUDA graphs; None compiles on a GPU.
        checkpoints: where to save progress and resume from.
        callbacks: called after every epoch.
        progress: show a progress bar; None shows it in terminals and notebooks unless there are callbacks.
    """

    epochs: int
    lr: float | None = None
    optimizer: Literal["auto", "sgd", "adamw"] | OptimizerFactory = "auto"
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip: float = 0.0
    nesterov: Literal["no", "standard", "authors"] = "no"
    warmup: int = 5
    average_from: int = 0
    constant_from: int = 0
    keep: Literal["best", "last"] = "last"
    seed: int = 0
    mixup: float | None = None
    cutmix: float | None = None
    device: torch.device | str = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool | None = None
    checkpoints: Checkpoints | None = None
    callbacks: tuple[Report, ...] = ()
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value, whole = getattr(self, name), isinstance(least, int)
            value = least if value is None and getattr(TrainConfig, name, 0) is None else value
            # The upper limit also excludes nan, inf, and integers too large for a float.
            if not (isinstance(value, int if whole else int | float) and least <= value <= MOST):
                raise ModebridgeError(
                    f"Expected {name} to be {'an integer' if whole else 'a number'} of at least {least:g} and at most "
                    f"{MOST:,}, but got {repr(value)[:50]}; change it."
                )
        if not (isinstance(self.seed, int) and abs(self.seed) <= SEEDS):
            got = str(self.seed)[:50]
            raise ModebridgeError(f"Expected seed to be an integer up to {SEEDS:,}, but got {got}; change it.")
        given: Any = self.checkpoints
        if not (given is None or isinstance(given, Checkpoints)):
            raise ModebridgeError(
                f"Expected checkpoints to be Checkpoints, but got {type(given).__name__}; pass Checkpoints({given!r})."
            )
        if not (isinstance(self.callbacks, tuple | list) and all(map(callable, self.callbacks))):
            raise ModebridgeError(
                f"Expected callbacks to be a tuple of functions of an epoch, but got {self.callbacks!r}; pass (print,)."
            )
        if self.average_from > self.epochs:
            raise ModebridgeError(
                f"Expected average_from to be at most the {self.epochs} epochs, but got {self.average_from}; lower it."
            )
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices and not (name == "optimizer" and callable(self.optimizer)):
                given, (*others, last) = getattr(self, name), map(repr, choices)
                got = f"'{given}'" if isinstance(given, str) else type(given).__name__
                hint = "choose one, or pass a function of the parameters" if name == "optimizer" else "choose one"
                raise ModebridgeError(f"Expected {name} to be {', '.join(others)} or {last}, but got {got}; {hint}.")
        for name in ("lr", "momentum", "weight_decay", "nesterov") if callable(self.optimizer) else ():
            if getattr(self, name) != getattr(TrainConfig, name):
                raise ModebridgeError(
                    f"Expected {name} to be left out where optimizer is a function, but got {getattr(self, name)}; set "
                    "it in the function."
                )

    @property
    def key(self) -> str:
        """The fields that determine the numbers, as text for the keys of artifacts and checkpoints."""
        left_out = {*HOW, *(() if self.constant_from else ("constant_from",))}  # it came later than stored keys
        return " ".join(
            f"{each.name}={_text(getattr(self, each.name))}" for each in fields(self) if each.name not in left_out
        )

    def resolved(self, net: nn.Module) -> TrainConfig:
        """The same with the optimizer for a network, if it is "auto", and its learning rate."""
        chosen = self.optimizer
        if chosen == "auto":
            chosen = "adamw" if is_attentive(net) else "sgd"
            if chosen == "adamw" and (self.lr or 0.0) >= LARGE:
                warnings.warn(
                    f"{type(net).__name__} has layer norm or attention and is trained by AdamW, for which a learning "
                    f"rate of {self.lr:g} is large; leave lr out, or set optimizer='sgd'.",
                    stacklevel=4,
                )
        rate = RATES[chosen] if isinstance(chosen, str) else None
        return replace(self, optimizer=chosen, lr=rate if self.lr is None else self.lr)

    def factor(self, epoch: int) -> float:
        """The fraction of the peak learning rate in an epoch, counted from 0.

        With e = epoch + 1, W = warmup and N = epochs: 0.01 + 0.99 (e - 1)/(W - 1) before epoch W, then half a cosine,
        0.5 (1 + cos(pi (e - W)/(N - W + 1))), which ends a little above zero.

        >>> [round(TrainConfig(epochs=200).factor(e), 4) for e in (0, 1, 2, 3, 4, 199)]
        [0.01, 0.2575, 0.505, 0.7525, 1.0, 0.0001]
        """
        if self.constant_from:
            epoch = min(epoch, self.constant_from - 1)
        # A short run needs decay more than warm-up.
        e, warmup = epoch + 1, min(self.warmup, max(1, self.epochs // 4))
        if e < warmup:
            return 0.01 + 0.99 * (e - 1) / (warmup - 1)
        return 0.5 * (1 + math.cos(math.pi * (e - warmup) / (self.epochs - warmup + 1)))


def _text(value: object) -> str:
    """A field as text that is the same in every process; of a function its name."""
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else str(value)


DEFAULT = TrainConfig(epochs=30)
"""The default of every function that fits something."""


@dataclass(frozen=True)
class Engine:
    """How to run, as `TrainConfig` describes it; in one process or in all that `torchrun` started."""

    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable
    bf16: bool = False
    compile: bool = False

    @classmethod
    def of(cls, config: TrainConfig, net: nn.Module | None = None) -> Engine:
        """The engine that a config asks for; "auto" prefers the device of `net`, if that is a GPU."""
        given = config.device
        if net is not None:
            check_runs(net)
        if given == "auto":
            here = None if net is None else next((tensor.device for tensor in net.state_dict().values()), None)
            found = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
            given = here if here and here.type in ("cuda", "mps") else found
        device = find_device(given)
        gpu = device.type == "cuda"
        if str(device) == "cuda":
            device = cls(device).processes.device or device
        bf16 = gpu if config.precision == "auto" else config.precision == "bf16"
        return cls(device, bf16, gpu if config.compile is None else config.compile)

    @property
    def graphs(self) -> bool:
        """Whether to replay a whole step (all tasks, each on its own stream) as one CUDA graph.

        Not in several processes, which average their gradients before the update.
        """
        return self.compile and self.device.type == "cuda" and self.processes.size == 1

    @property
    def way(self) -> str:
        """How steps are run, as far as a checkpoint depends on it: "bf16 together", "fp32 in turn"."""
        return f"{'bf16' if self.bf16 else 'fp32'} {'together' if self.graphs else 'in turn'}"

    @property
    def processes(self) -> Processes:
        """The processes that train together: one, unless a launcher started more."""
        return launched(cpu=self.device.type == "cpu") if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Processes()

    def precision(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self.bf16 else nullcontext()

    def compiled(self, function: F) -> F:
        """The function, compiled for fixed shapes if enabled."""
        if not self.compile:
            return function
        # The compiler counts programs of one kind as recompiled versions of one function, and its limit is too low.
        for limit in ("recompile_limit", "accumulated_recompile_limit"):
            setattr(torch._dynamo.config, limit, max(getattr(torch._dynamo.config, limit), PROGRAMS))
        compiled: Any = torch.compile(function, dynamic=False)  # type: ignore[call-overload]
        return compiled  # type: ignore[no-any-return]

    def feed(self, batches: Batches) -> Batches:
        """The same batches on our device."""
        return batches if self.device.type == "cpu" else Mapped(batches, lambda batch: self.moved(batch, {})[0])

    def moved(self, batch: Batch, draw: Draw) -> tuple[Batch, Draw]:
        """A batch and its draws on our device; copies from pinned memory are asynchronous."""
        images = map_inputs(lambda tensor: tensor.to(self.device, non_blocking=True), batch[0])
        labels = batch[1].to(self.device, non_blocking=True)
        # float64 is slow on a GPU and does not help a step; numbers are drawn in float64 on the CPU.
        moved = {
            name: tensor.to(self.device, torch.float32 if tensor.is_floating_point() else None, non_blocking=True)
            for name, tensor in draw.items()
        }
        return (images, labels), moved if self.device.type != "cpu" else draw

    def speed_up(self, bases: Bases[Any]) -> None:
        """Compile the forward pass of frozen networks, and run them in parallel streams, where that is enabled."""
        bases.run = self.compiled(bases.run)
        bases.fan_out = self.fan_out

    def fan_out(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Run independent jobs and return their results; during graph capture each gets its own stream.

        Outside of a capture they run one after another: memory of one stream must not be reused by another while it is
        still being read. A graph's own pool takes care of that.
        """
        if self.device.type != "cuda" or len(jobs) < 2 or not torch.cuda.is_current_stream_capturing():
            return [job() for job in jobs]
        main = torch.cuda.current_stream()
        results: list[T] = []
        for k, job in enumerate(jobs):
            stream = _stream(self.device, k)
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                results.append(job())
        for k in range(len(jobs)):
            main.wait_stream(_stream(self.device, k))
        return results


@cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
