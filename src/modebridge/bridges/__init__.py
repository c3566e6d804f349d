"""Step 3: a small network that predicts the midpoint from features of the ends."""

from modebridge.bridges.bridge import Bridge
from modebridge.bridges.build import Kind, ResidualBody, VectorBody, body_for, body_like, last_blocks_tap
from modebridge.bridges.objective import BridgeObjective, kl_divergence, mix
from modebridge.bridges.targets import Target, curve_target, ensemble_target, label_target, mode_target

__all__ = [
    "Bridge",
    "BridgeObjective",
    "Kind",
    "ResidualBody",
    "Target",
    "VectorBody",
    "body_for",
    "body_like",
    "curve_target",
    "ensemble_target",
    "kl_divergence",
    "label_target",
    "last_blocks_tap",
    "mix",
    "mode_target",
]
