"""The bridged ensemble: the equal-weight mean of some modes and some bridges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import Self

import torch
from torch import Tensor, nn

from modebridge.batches import check_batch, check_labels
from modebridge.bridges import Bridge
from modebridge.ensembles.forward import EvaluationOnly, Output, member_logits
from modebridge.ensembles.inputs_check import check_inputs, check_logits, refusal, takes_tokens
from modebridge.ensembles.temperature import fit_temperature, scale
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, check_modes
from modebridge.nets import Mean, Taps, average, call, check_mean, check_tap, frozen_copy, probabilities_of
from modebridge.nets.flops import FAILED
from modebridge.nets.quirks import tracing
from modebridge.types import Batches, Inputs

__all__ = ["Ensemble"]


class Ensemble(EvaluationOnly):
    """Modes and bridges as one module: probabilities out, each mode run once.

    Without bridges it is a deep ensemble. A point of a curve is a mode like any other (`curve.at(0.5)`).

    It is for prediction: several threads may call it, and `train()`, also of a parent module, leaves the members in
    evaluation mode. Images are floats like those the networks were trained on; integers are rejected, except tokens.
    An image with NaN gets NaN; the other images of its batch are not affected.

    Args:
        net: the base network.
        modes: at least one mode; each is a member.
        bridges: bridges of types I and II; each is a member and reads modes that are members too.
        mean: "probability" averages the members' probabilities, as the paper does; "logarithmic" averages their logits,
            which gives the normalised geometric mean of their probabilities.
    """

    temperature: Tensor
    _fitted: Tensor

    def __init__(
        self, net: nn.Module, modes: Sequence[Mode], bridges: Sequence[Bridge] = (), *, mean: Mean = "probability"
    ) -> None:
        super().__init__()
        self.mean: Mean = check_mean(mean)
        check_modes(net, modes, 1, "an ensemble")
        ids = [mode.id for mode in modes]
        if len(set(ids)) < len(ids):
            raise ModebridgeError(
                "Expected the modes of an ensemble to differ, but got the same weights twice; pass each mode once."
            )
        if isinstance(bridges, nn.Module):
            raise ModebridgeError("Expected a list of bridges, but got one module; put it in a list.")
        for bridge in bridges:
            if not isinstance(bridge, Bridge):
                raise ModebridgeError(
                    f"Expected the bridges of an ensemble to be of type Bridge, but got {type(bridge).__name__}; "
                    "train them with fit_bridge."
                )
            for tap in bridge.taps:
                check_tap(net, tap)
            for source in bridge.reads:
                if source not in ids:
                    raise ModebridgeError(
                        f"Expected bridge '{bridge.name}' to read modes of the ensemble, but mode {source[:8]} "
                        "is not a member; add the mode it was trained on."
                    )
        self.bases = nn.ModuleList([mode.load(net) for mode in modes])
        self.bridges = nn.ModuleList([frozen_copy(bridge) for bridge in bridges])
        self.eval()
        self._reads = [tuple(ids.index(source) for source in bridge.reads) for bridge in bridges]
        self._taps: list[list[str]] = [
            sorted({tap for b, reads in zip(bridges, self._reads, strict=True) if k in reads for tap in b.taps})
            for k in range(len(modes))
        ]
        self._readers = [Taps(base, taps) for base, taps in zip(self.bases, self._taps, strict=True)]
        self._tokens = takes_tokens(net)
        self.register_buffer("temperature", torch.ones(()))
        # A buffer, so that a state dict records whether the temperature was fitted.
        self.register_buffer("_fitted", torch.zeros((), dtype=torch.bool))

    def __repr__(self) -> str:
        # Instead of torch's tree of every layer of every mode; `ensemble.bridges` prints the bodies.
        modes = f"{len(self.bases)} mode{'' if len(self.bases) == 1 else 's'} of {type(self.bases[0]).__name__}"
        bridges = "".join(f", bridge({bridge.extra_repr()})" for bridge in self.bridges)
        mean = "" if self.mean == "probability" else f", mean={self.mean!r}"
        return f"Ensemble({modes}{bridges}{mean}, temperature={float(self.temperature):.4g})"

    def __len__(self) -> int:
        return len(self.bases) + sum(bridge.heads for bridge in self.bridges if isinstance(bridge, Bridge))

    @property
    def calibrated(self) -> bool:
        """Whether `calibrate` has been called."""
        return bool(self._fitted)

    def members(self, images: Inputs) -> Tensor:
        """The probabilities (M, B, K) of all members, at least in float32: the modes, then the bridges' heads."""
        return self._checked_members(images, "a call")

    def _checked_members(self, given: object, what: str) -> Tensor:
        """The probabilities of all members; raises a clear error for unsuitable inputs."""
        self.check_evaluating()
        images = check_inputs(given, self._tokens, what)
        if tracing():
            return self._run(images)
        try:
            return self._run(images)
        except FAILED as error:
            refused = refusal(error, images, self, what)
            if refused is None:
                raise
            raise refused from error

    def _run(self, images: Inputs) -> Tensor:
        outputs: dict[int, Output] = {}
        for k, (base, reader) in enumerate(zip(self.bases, self._readers, strict=True)):
            outputs[k] = reader.read(partial(call, base, images))
            check_logits(outputs[k][0], images)
        return probabilities_of(torch.stack(member_logits(outputs, self.reads)))

    @property
    def reads(self) -> list[tuple[Bridge, tuple[int, ...]]]:
        """Each bridge, with the numbers of the modes that it reads."""
        bridges = [bridge for bridge in self.bridges if isinstance(bridge, Bridge)]
        return list(zip(bridges, self._reads, strict=True))

    def forward(self, images: Inputs | None = None, **inputs: Tensor) -> Tensor:
        """The calibrated mean of the members' probabilities (B, K); pass several inputs as a dict or by name."""
        return scale(average(self.members(inputs if images is None else images), self.mean), self.temperature)

    @torch.no_grad()
    def calibrate(self, valid: Batches) -> Self:
        """Fit the temperature on held-out data (never on the test split) and return the ensemble."""
        self.train(self.training)  # the members go to evaluation mode, whatever was done to them
        pairs = [self._predict(item) for item in valid]
        if not pairs:
            raise ModebridgeError(
                "Expected valid to have batches to calibrate on, but got none; pass the validation split."
            )
        temperature = fit_temperature(torch.cat([p for p, _ in pairs]), torch.cat([y for _, y in pairs]))
        self.temperature.fill_(temperature)
        self._fitted.fill_(True)
        return self

    def _predict(self, item: object) -> tuple[Tensor, Tensor]:
        images, labels = check_batch(item, "valid")
        probabilities = average(self._checked_members(images, "valid"), self.mean)
        check_labels(labels, probabilities.shape[-1], "valid")
        return probabilities, labels

    def save(self, path: str | PathLike[str], *, net: str | None = None) -> None:
        """Write the ensemble as a folder that `modebridge.load` reads; see `modebridge.files.save`."""
        from modebridge.files import save

        save(self, path, net=net)
