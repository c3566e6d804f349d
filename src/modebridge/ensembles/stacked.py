"""A bridged ensemble as other libraries want one: logits of all members, one below the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from modebridge.errors import ModebridgeError

if TYPE_CHECKING:
    from modebridge.ensembles.ensemble import BridgedEnsemble

__all__ = ["Stacked"]


class Stacked(nn.Module):
    """Log-probabilities (M * B, K), all images of the first member, then all of the second: "(m b) c".

    This is torch-uncertainty's convention for ensembles: `ClassificationRoutine(model=ensemble.stacked(),
    is_ensemble=True, ...)` takes the softmax of each row and the mean over members, and so arrives at the ensemble's
    own mean probability. The order of members is that of `BridgedEnsemble.members`. An ensemble by the logarithmic mean
    can only be given calibrated: that routine would take the other mean of its members.

    The ensemble's temperature has no place in that: it acts on the log of the mean, and no change of single members'
    logits gives the same. So the rows are of the uncalibrated ensemble, unless `calibrated` asks for one row an image,
    the log of the calibrated probability; what needs members (their disagreement, mutual information) is lost then.

    Args:
        ensemble: it is shared, not copied.
        calibrated: give (B, K), calibrated, instead; with `is_ensemble=False` over there.
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
                "Expected an ensemble by the mean of probabilities, which is what others make of the rows, but its "
                f"mean is {ensemble.mean}; give calibrated=True for one row an image."
            )
        self.ensemble = ensemble
        self.calibrated = calibrated

    @property
    def num_estimators(self) -> int:
        """M, or 1 where there is one row an image; the name is torch-uncertainty's."""
        return 1 if self.calibrated else len(self.ensemble)

    def forward(self, images: Tensor) -> Tensor:
        """Log-probabilities (M * B, K), or (B, K) if calibrated."""
        probabilities: Tensor = self.ensemble(images) if self.calibrated else self.ensemble.members(images)
        # A probability that underflowed to 0 has no finite logarithm, and not every score takes -inf.
        return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log().flatten(0, -2)
