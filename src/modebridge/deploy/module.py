"""A bridged ensemble as one module that maps inputs to the outputs of a file, and its program in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from modebridge.batches import check_batch
from modebridge.deploy.inputs import check_example
from modebridge.ensembles import AnswerRule, Ensemble, Output, SetRule, fit_temperature, scale
from modebridge.ensembles.forward import EvaluationOnly, average, cascaded, member_logits, probabilities_of
from modebridge.ensembles.temperature import FLOOR
from modebridge.errors import ModebridgeError, first_line
from modebridge.files.adapters import quiet
from modebridge.nets import Taps, frozen_copy, second
from modebridge.nets.quirks import exportable, plain_attention
from modebridge.types import Batches, Inputs

Tensors: TypeAlias = Sequence[Tensor]


class Calibration(NamedTuple):
    """What a file has from held-out images: temperatures, which divide the log of the mean probability, and rules."""

    first: float  # of the first base alone, which a cascade uses for confident images
    full: float  # of all members
    sets: SetRule | None = None
    answers: AnswerRule | None = None

    @classmethod
    @torch.no_grad()
    def of(cls, ensemble: Ensemble, valid: Batches | Calibration | None, threshold: float | None) -> Calibration:
        """What `export` stores for its arguments."""
        own, sets, answers = float(ensemble.temperature), ensemble.sets, ensemble.answers
        if isinstance(valid, Calibration):
            if not all(0 < one < float("inf") for one in valid[:2]):
                raise ModebridgeError(f"Expected temperatures to be positive, but got {valid[:2]}; fit them again.")
            return valid
        if valid is None:
            if threshold is not None and (sets or answers):
                raise ModebridgeError(
                    "Expected held-out data to fit the sets and answers of a cascade, whose probabilities are not "
                    "those of all members, but got none; pass valid."
                )
            return cls(own, own, sets, answers)
        pairs = [check_batch(item, "valid") for item in valid]
        pairs = [(check_example(images, "valid"), labels.cpu()) for images, labels in pairs]
        table, labels = ensemble.averaged(pairs)
        alone = table if len(ensemble) == 1 else Ensemble(ensemble.bases[0], [ensemble.first]).averaged(pairs)[0]
        full = own if ensemble.calibrated else fit_temperature(table, labels)
        first = full if alone is table else fit_temperature(alone, labels)
        table = scale(table, full)
        if threshold is not None:
            if pairs[0][1].dim() > 1 and (sets or answers):
                raise ModebridgeError(
                    "Expected a cascade of networks that classify places to have no sets or answers, since these hold "
                    "for places and it chooses by image, but got some; leave out the threshold."
                )
            table = cascaded(scale(alone, first), table, threshold)[0]
        if sets is not None:
            sets = SetRule.fit(table, labels, sets.coverage, sets.method, per_class=len(sets.limits) > 1)
        if answers is not None:
            answers = AnswerRule.fit(table, labels, answers.risk, answers.confidence)
        return cls(first, full, sets, answers)


class EnsembleModule(EvaluationOnly):
    """All members as one module that shares nothing with the ensemble: a plain graph to compile or export.

    It has three parts, which a cascade uses one by one: `first`, the first base; `alone`, the outputs if only that base
    has run; and `others`, the outputs of all members from what the first base says.

    Args:
        ensemble: modes and bridges; copied.
        fitted: None for what the ensemble has.
        inputs: names of the inputs, if the networks take several by name; they are then passed in this order.
        outputs: names of the outputs, in order; see `Answer`.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        fitted: Calibration | None = None,
        *,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] = ("probabilities",),
    ) -> None:
        super().__init__()
        if ensemble.mean != "probability":
            raise ModebridgeError(
                "Expected an ensemble with the mean of probabilities, which is the only one that files have, but its "
                f"mean is {ensemble.mean}; build it with mean='probability'."
            )
        fitted = fitted or Calibration.of(ensemble, None, None)
        bases = [
            BaseModule(
                base, sorted({tap for bridge, reads in ensemble.reads if k in reads for tap in bridge.taps}), inputs
            )
            for k, base in enumerate(ensemble.bases)
        ]
        self.first = bases[0]
        self.alone = Outputs(outputs, fitted.first, len(ensemble), fitted)
        self.others = Others(bases, ensemble, Outputs(outputs, fitted.full, len(ensemble), fitted))
        self.eval().requires_grad_(False)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The outputs of all members, in order."""
        return self.others(*self.first(*tensors), *tensors)  # type: ignore[no-any-return]


class BaseModule(EvaluationOnly):
    """A copy of a base network that maps tensors in order to its logits (B, *P, K), then to one feature per tap."""

    def __init__(self, net: nn.Module, taps: Sequence[str], inputs: Sequence[str] | None) -> None:
        super().__init__()
        self.net, self.taps = exportable(frozen_copy(net)), list(taps)
        self._reader, self._inputs = Taps(self.net, taps), inputs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given: Inputs = tensors[0] if self._inputs is None else dict(zip(self._inputs, tensors, strict=True))
        logits, features = self._reader.read(self.net, given)
        return (logits, *(features[tap] for tap in self.taps))


class Outputs(EvaluationOnly):
    """The outputs of a file, from the logits (B, *P, K) of those of its `count` members that ran."""

    def __init__(self, names: Sequence[str], temperature: float, count: int, rules: Calibration) -> None:
        super().__init__()
        self.names, self.temperature, self.count, self.rules = list(names), temperature, count, rules

    def forward(self, *logits: Tensor) -> tuple[Tensor, ...]:
        members = probabilities_of(torch.stack(logits))
        ran, batch = members.shape[:2]
        each, answer = members.transpose(0, 1), scale(average(members), self.temperature)
        if ran < self.count:
            each = nn.functional.pad(each, (0, 0) * (members.dim() - 2) + (0, self.count - ran))
        tables = {
            "probabilities": second(answer),
            "members": second(each, 2),
            "entropy": _entropy(answer),
            "mutual_information": _entropy(average(members)) - _entropy(members).mean(dim=0),
            "used": torch.full((batch,), ran, device=members.device),
        }
        if self.rules.sets is not None:
            tables["sets"] = second(self.rules.sets(answer))
        if self.rules.answers is not None:
            tables["answered"] = self.rules.answers(answer)
        return tuple(tables[name] for name in self.names)


class Others(EvaluationOnly):
    """The other bases and the bridges: maps the first base's logits and features, and the inputs, to the outputs."""

    def __init__(self, bases: Sequence[BaseModule], ensemble: Ensemble, outputs: Outputs) -> None:
        super().__init__()
        self.taps = [base.taps for base in bases]
        self.bases = nn.ModuleList(bases[1:])
        self.bridges = nn.ModuleList(frozen_copy(bridge) for bridge, _ in ensemble.reads)
        self._reads = [reads for _, reads in ensemble.reads]
        self.outputs = outputs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        end = 1 + len(self.taps[0])
        passes = [tensors[:end], *(base(*tensors[end:]) for base in self.bases)]
        found: dict[int, Output] = {}
        for k, (logits, *features) in enumerate(passes):
            found[k] = logits, dict(zip(self.taps[k], features, strict=True))
        bridges: Any = zip(self.bridges, self._reads, strict=True)
        return self.outputs(*member_logits(found, list(bridges)))  # type: ignore[no-any-return]


def _entropy(table: Tensor) -> Tensor:
    return -(table * (table + FLOOR).log()).sum(dim=-1)


def export_program(
    exporter: Callable[..., Any], called: str, module: nn.Module, examples: Sequence[Tensors], **options: Any
) -> Any:
    """The program of a module that takes tensors in order, for any batch size; errors name the exporter `called`.

    The axes in which the first and the last example differ may have any size.
    """
    # Two rows: a batch size of one would become a constant. Contiguous, since strides become part of the program.
    inputs = tuple(tensor[:1].expand(2, *tensor.shape[1:]).contiguous() for tensor in examples[0])
    sizes = [zip(one.shape, two.shape, strict=True) for one, two in zip(examples[0], examples[-1], strict=True)]
    free = [{0, *(axis for axis, (a, b) in enumerate(pairs) if a != b)} for pairs in sizes]
    shapes = (tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in free),)
    with quiet(), plain_attention():
        try:
            return exporter(module.eval(), inputs, dynamic_shapes=shapes, **options)
        except Exception as error:
            cause: BaseException = error
            while (inner := cause.__cause__ or cause.__context__) is not None:
                cause = inner
            fix = "use operations that can be exported, without branches on values in tensors"
            if "Constraints violated" in str(cause):
                fix = "use x.shape[0] instead of len(x), and no other constant for the number of images"
            raise ModebridgeError(
                f"Expected the ensemble to be exportable by {called}, but got '{first_line(cause)}'; {fix}."
            ) from cause.with_traceback(None)  # hundreds of lines of the exporter's own
