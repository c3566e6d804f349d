"""Step 4: members to one mean probability, calibrated."""

from modebridge.ensembles.ensemble import BridgedEnsemble
from modebridge.ensembles.stacked import Stacked
from modebridge.ensembles.temperature import fit_temperature, probabilities_of, scale

__all__ = ["BridgedEnsemble", "Stacked", "fit_temperature", "probabilities_of", "scale"]
