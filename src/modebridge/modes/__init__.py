"""Step 1: a mode is one trained point in parameter space."""

from modebridge.modes.fresh import fresh_weights
from modebridge.modes.mode import Mode, check_modes, tensors_of
from modebridge.modes.objective import ModeObjective, error_rate
from modebridge.modes.statistics import Refresh, check_statistics, has_statistics, refresh_statistics

__all__ = [
    "Mode",
    "ModeObjective",
    "Refresh",
    "check_modes",
    "check_statistics",
    "error_rate",
    "fresh_weights",
    "has_statistics",
    "refresh_statistics",
    "tensors_of",
]
