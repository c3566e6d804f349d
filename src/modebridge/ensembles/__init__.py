"""Step 4: average the members' probabilities and calibrate the mean."""

from modebridge.ensembles.ensemble import BridgedEnsemble
from modebridge.ensembles.temperature import fit_temperature, scale
from modebridge.nets import Mean, average, logarithmic_mean, mean_probability, probabilities_of

__all__ = [
    "BridgedEnsemble",
    "Mean",
    "average",
    "fit_temperature",
    "logarithmic_mean",
    "mean_probability",
    "probabilities_of",
    "scale",
]
