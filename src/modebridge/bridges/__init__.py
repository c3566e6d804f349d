"""Step 3: a small network that predicts the midpoint, or other modes, from features of the ends."""

from modebridge.bridges.bodies import (
    Heads as Heads,
    ResidualBody as ResidualBody,
    TokenBody as TokenBody,
    VectorBody as VectorBody,
    body_for as body_for,
    body_like as body_like,
)
from modebridge.bridges.bridge import (
    READS as READS,
    Bridge as Bridge,
    Kind as Kind,
    Target as Target,
    curve_target as curve_target,
    ensemble_target as ensemble_target,
    heads_target as heads_target,
    label_target as label_target,
    mode_target as mode_target,
)
from modebridge.bridges.budget import body_within as body_within
from modebridge.bridges.build import (
    build_bridge as build_bridge,
    inspect as inspect,
    plan_bridge as plan_bridge,
)
from modebridge.nets import last_blocks_tap as last_blocks_tap
