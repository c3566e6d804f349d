"""Step 4: average the members' probabilities, calibrate the mean, and decide."""

from modebridge.ensembles.decisions import AnswerRule, Method, SetRule, cascade_threshold
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
    "AnswerRule",
    "Bases",
    "Ensemble",
    "EvaluationOnly",
    "Mean",
    "Method",
    "Output",
    "SetRule",
    "average",
    "cascade_threshold",
    "cascaded",
    "features_of",
    "fit_temperature",
    "member_logits",
    "probabilities_of",
    "scale",
]
