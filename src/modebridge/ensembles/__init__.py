"""Step 4: members to one mean probability, calibrated."""

from modebridge.ensembles.ensemble import BridgedEnsemble
from modebridge.ensembles.stacked import Stacked
from modebridge.ensembles.temperature import fit_temperature, scale
from modebridge.nets import Mean, average, logarithmic_mean, mean_probability, probabilities_of

__all__ = [
    "BridgedEnsemble",
    "Mean",
    "Stacked",
    "average",
    "fit_temperature",
    "logarithmic_mean",
    "mean_probability",
    "probabilities_of",
    "scale",
]
