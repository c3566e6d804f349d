"""Step 4: average the members' probabilities and calibrate the mean."""

from modebridge.ensembles.ensemble import Ensemble
from modebridge.ensembles.forward import (
    Bases,
    EvaluationOnly,
    Mean,
    Output,
    average,
    cascaded,
    features_of,
    member_logits,
    probabilities_of,
)
from modebridge.ensembles.temperature import fit_temperature, scale

__all__ = [
    "Bases",
    "Ensemble",
    "EvaluationOnly",
    "Mean",
    "Output",
    "average",
    "cascaded",
    "features_of",
    "fit_temperature",
    "member_logits",
    "probabilities_of",
    "scale",
]
