"""The bridged ensemble: the equal-weight mean of some modes and some bridges."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from modebridge.batches import size_of
from modebridge.bridges import Bridge
from modebridge.ensembles.checks import check_inputs, refusing, shapes
from modebridge.ensembles.forward import (
    Mean,
    Output,
    average,
    check_logits,
    check_mean,
    member_logits,
    probabilities_of,
)
from modebridge.ensembles.predictor import Predictor
from modebridge.ensembles.temperature import BOUNDS, fit_temperature, scale
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, Trained, check_modes, to_modes
from modebridge.nets import Taps, check_tap, frozen_copy, second
from modebridge.nets.quirks import tracing
from modebridge.types import Batches, Inputs


class Ensemble(Predictor):
    """Modes and bridges as one module: probabilities out, each mode run once.

    Without bridges it is a deep ensemble. A point of a curve is a mode like any other (`curve.at(0.5)`).

    It is for prediction: several threads may call it, and `train()`, also of a parent module, leaves the members in
    evaluation mode. Images are floats like those the networks were trained on; integers are rejected, except tokens.
    An image with NaN gets NaN; the other images of its batch are not affected.

    Args:
        net: the base network.
        modes: at least one mode; each is a member. Trained modules, state dicts and paths of checkpoints are modes too.
        bridges: bridges of types I and II; each is a member and reads modes that are members too.
        mean: "probability" averages the members' probabilities, as the paper does; "logarithmic" averages their logits,
            which gives the normalized geometric mean of their probabilities.

    >>> Ensemble(nn.Linear(4, 3), [nn.Linear(4, 3), nn.Linear(4, 3)])
    Ensemble(2 modes of Linear, temperature=1)
    """

    temperature: Tensor
    _fitted: Tensor

    def __init__(
        self, net: nn.Module, modes: Sequence[Trained], bridges: Sequence[Bridge] = (), *, mean: Mean = "probability"
    ) -> None:
        super().__init__()
        self.mean: Mean = check_mean(mean)
        given = to_modes(net, modes)
        check_modes(net, given, 1, "an ensemble")
        ids = [mode.id for mode in given]
        if len(set(ids)) < len(ids):
            raise ModebridgeError(
                "Expected the modes of an ensemble to differ, but got the same weights twice; pass each mode once."
            )
        if isinstance(bridges, nn.Module | Mode):
            raise ModebridgeError(
                f"Expected a list of bridges, but got one {type(bridges).__name__}; put bridges in a list, and modes "
                "in another."
            )
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
        self.bases = nn.ModuleList([mode.load(net) for mode in given])
        self.bridges = nn.ModuleList([frozen_copy(bridge) for bridge in bridges])
        self.eval()
        self._checked = False
        self._reads = [tuple(ids.index(source) for source in bridge.reads) for bridge in bridges]
        self._taps: list[list[str]] = [
            sorted({tap for b, reads in zip(bridges, self._reads, strict=True) if k in reads for tap in b.taps})
            for k in range(len(given))
        ]
        self._readers = [Taps(base, taps) for base, taps in zip(self.bases, self._taps, strict=True)]
        # Of a network with embeddings, integers may be the only input.
        self._tokens = any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in net.modules())
        self.register_buffer("temperature", torch.ones(()))
        # A buffer, so that a state dict records whether the temperature was fitted.
        self.register_buffer("_fitted", torch.zeros((), dtype=torch.bool))

    def __repr__(self) -> str:
        # Instead of torch's tree of every layer of every mode; `ensemble.bridges` prints the bodies.
        modes = f"{len(self.bases)} mode{'' if len(self.bases) == 1 else 's'} of {type(self.bases[0]).__name__}"
        bridges = "".join(f", bridge({bridge.extra_repr()})" for bridge in self.bridges)
        mean = "" if self.mean == "probability" else f", mean={self.mean!r}"
        return f"Ensemble({modes}{bridges}{mean}, temperature={float(self.temperature):.4g}{self._rules()})"

    def __len__(self) -> int:
        return len(self.bases) + sum(bridge.heads for bridge in self.bridges if isinstance(bridge, Bridge))

    @property
    def first(self) -> Mode:
        """The first mode, which runs alone for the images that a cascade is sure of."""
        return Mode.from_module(self.bases[0])

    @property
    def calibrated(self) -> bool:
        """Whether `calibrate` has been called."""
        return bool(self._fitted)

    def members(self, images: Inputs) -> Tensor:
        """The probabilities (M, B, K) of all members, at least in float32: the modes, then the bridges' heads."""
        return second(self.table(images), 2)

    def table(self, images: Inputs, what: str = "you passed") -> Tensor:
        """The same with classes as the last axis, (M, B, *P, K).

        Unsuitable inputs raise an error that names them by `what`, as in "the images you passed".
        """
        self.check_evaluating()
        images = check_inputs(images, self._tokens, what)
        if tracing():
            return self._run(images)
        with refusing(images, self, what):
            return self._run(images)

    def _run(self, images: Inputs) -> Tensor:
        outputs = {k: self.read(k, images) for k in range(len(self.bases))}
        return probabilities_of(torch.stack(member_logits(outputs, self.reads)))

    def read(self, k: int, images: Inputs) -> Output:
        """The logits of a mode, and the features that bridges read."""
        output = self._readers[k].read(self.bases[k], images)
        shape = tuple(second(output[0]).shape)
        if len(shape) < 2 or shape[0] != size_of(images):  # some networks accept an image without a batch axis
            raise ModebridgeError(
                f"Expected the network's logits to be (batch, classes), but got {shape} for {shapes(images)};"
                " pass a batch, or images[None] for a single image."
            )
        if not (self._checked or tracing()):
            check_logits(output[0], self.bases[k])
            self._checked = True  # once, as a GPU waits for it
        return output

    @property
    def reads(self) -> list[tuple[Bridge, tuple[int, ...]]]:
        """Each bridge, with the numbers of the modes that it reads."""
        bridges = [bridge for bridge in self.bridges if isinstance(bridge, Bridge)]
        return list(zip(bridges, self._reads, strict=True))

    def forward(self, images: Inputs | None = None, **inputs: Tensor) -> Tensor:
        """The calibrated mean of the members' probabilities (B, K); pass several inputs as a dict or by name."""
        return second(self.probabilities(inputs if images is None else images))

    def probabilities(self, images: Inputs, what: str = "you passed") -> Tensor:
        """The same with classes as the last axis, (B, *P, K)."""
        return scale(average(self.table(images, what), self.mean), self.temperature)

    def calibrate(self, valid: Batches) -> Self:
        """Fit the temperature on held-out data (never on the test split) and return the ensemble.

        Rules for sets and answers hold only for the temperature they were fitted with, so they are dropped.
        """
        self.temperature.fill_(fit_temperature(*self.averaged(valid)))
        if self.temperature >= BOUNDS[1]:
            warnings.warn(
                f"The temperature is at its limit of {BOUNDS[1]:g}: predictions are no better than chance; check that "
                "valid has images and labels as the networks were trained on.",
                stacklevel=2,
            )
        self._fitted.fill_(True)
        self.sets = self.answers = None
        return self

    def averaged(self, valid: Batches) -> tuple[Tensor, Tensor]:
        """The mean probabilities (N, K) of the members, before any temperature, and the labels (N,); see `collect`."""
        return self.collect(valid, lambda images, what: average(self.table(images, what), self.mean))

    def as_transformers(self) -> Any:
        """This ensemble as a `PreTrainedModel` of transformers; see `modebridge.deploy.pretrained.as_transformers`."""
        from modebridge.deploy.pretrained import as_transformers

        return as_transformers(self)
