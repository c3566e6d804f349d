"""Step 3: a small network that predicts the midpoint, or other modes, from features of the ends."""

from modebridge.bridges.bodies import Heads, ResidualBody, TokenBody, VectorBody, body_for, body_like
from modebridge.bridges.bridge import (
    READS,
    Bridge,
    Kind,
    Target,
    curve_target,
    ensemble_target,
    heads_target,
    label_target,
    mode_target,
)
from modebridge.bridges.build import body_within, build_bridge, inspect, plan_bridge
from modebridge.nets import last_blocks_tap

__all__ = [
    "READS",
    "Bridge",
    "Heads",
    "Kind",
    "ResidualBody",
    "Target",
    "TokenBody",
    "VectorBody",
    "body_for",
    "body_like",
    "body_within",
    "build_bridge",
    "curve_target",
    "ensemble_target",
    "heads_target",
    "inspect",
    "label_target",
    "last_blocks_tap",
    "mode_target",
    "plan_bridge",
]
