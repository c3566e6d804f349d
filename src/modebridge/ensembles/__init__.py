"""Step 4: members to one mean probability, calibrated."""

from modebridge.ensembles.ensemble import BridgedEnsemble
from modebridge.ensembles.temperature import fit_temperature, scale

__all__ = ["BridgedEnsemble", "fit_temperature", "scale"]
