"""Step 4: average the members' probabilities and calibrate the mean."""

from modebridge.ensembles.ensemble import Ensemble
from modebridge.ensembles.forward import Bases, Output, cascaded, features_of, member_logits
from modebridge.ensembles.temperature import fit_temperature, scale
from modebridge.nets import Mean, average, logarithmic_mean, mean_probability, probabilities_of

BridgedEnsemble = Ensemble  # the name of 0.2, while call sites move

__all__ = [
    "Bases",
    "BridgedEnsemble",
    "Ensemble",
    "Mean",
    "Output",
    "average",
    "cascaded",
    "features_of",
    "fit_temperature",
    "logarithmic_mean",
    "mean_probability",
    "member_logits",
    "probabilities_of",
    "scale",
]
