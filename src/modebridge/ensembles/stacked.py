"""A bridged ensemble in the format of other libraries: the logits of all members, stacked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from modebridge.errors import ModebridgeError

if TYPE_CHECKING:
    from modebridge.ensembles.ensemble import BridgedEnsemble

__all__ = ["Stacked"]


class Stacked(nn.Module):
    """Log-probabilities (M * B, K): all images of the first member, then all of the second, "(m b) c".

    This is torch-uncertainty's convention for ensembles: `ClassificationRoutine(model=ensemble.stacked(),
    is_ensemble=True, ...)` takes the softmax of each row and the mean over members, which is the ensemble's mean
    probability. The order of members is that of `BridgedEnsemble.members`. An ensemble with the logarithmic mean must
    use `calibrated=True`, because that routine averages probabilities.

    The temperature acts on the log of the mean, which no change of single members' logits can reproduce. So the rows
    are uncalibrated, unless `calibrated` is set: then there is one row per image, the log of the calibrated
    probability, and quantities that need members (disagreement, mutual information) are not available.

    Args:
        ensemble: the ensemble; it is shared, not copied.
        calibrated: return calibrated (B, K) instead; use it with `is_ensemble=False`.
    """

    def __init__(self, ensemble: BridgedEnsemble, *, calibrated: bool = False) -> None:
        super().__init__()
        if calibrated and not ensemble.calibrated:
            raise ModebridgeError(
                "Expected the ensemble to be calibrated, but it has no fitted temperature; "
                "call ensemble.calibrate(valid) first, or leave calibrated=False."
            )
        if not calibrated and ensemble.mean != "probability":
            raise ModebridgeError(
                "Expected an ensemble with the mean of probabilities, which is how other libraries average the rows, "
                f"but its mean is {ensemble.mean}; use calibrated=True for one row per image."
            )
        self.ensemble = ensemble
        self.calibrated = calibrated

    @property
    def num_estimators(self) -> int:
        """Number of members M, or 1 if calibrated; named as in torch-uncertainty."""
        return 1 if self.calibrated else len(self.ensemble)

    def forward(self, images: Tensor) -> Tensor:
        """Log-probabilities (M * B, K), or (B, K) if calibrated."""
        probabilities: Tensor = self.ensemble(images) if self.calibrated else self.ensemble.members(images)
        # A probability that underflowed to 0 has no finite logarithm, and not every score accepts -inf.
        return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log().flatten(0, -2)
