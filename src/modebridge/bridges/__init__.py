"""Step 3: train a small network to predict the midpoint from features of the ends."""

from modebridge.bridges.bodies import Heads, ResidualBody, TokenBody, VectorBody
from modebridge.bridges.bridge import Bridge
from modebridge.bridges.budget import body_within
from modebridge.bridges.build import READS, Kind, body_for, body_like
from modebridge.bridges.choose import ChosenBody, choose_body
from modebridge.bridges.loss import bridge_loss, kl_divergence, mix
from modebridge.bridges.matching import Compile, FanOut, FrozenNetworks, MatchingObjective, in_turn
from modebridge.bridges.objective import BridgeObjective
from modebridge.bridges.targets import (
    Target,
    curve_target,
    ensemble_target,
    heads_target,
    label_target,
    mode_target,
    with_labels,
)
from modebridge.nets import last_blocks_tap

__all__ = [
    "READS",
    "Bridge",
    "BridgeObjective",
    "ChosenBody",
    "Compile",
    "FanOut",
    "FrozenNetworks",
    "Heads",
    "Kind",
    "MatchingObjective",
    "ResidualBody",
    "Target",
    "TokenBody",
    "VectorBody",
    "body_for",
    "body_like",
    "body_within",
    "bridge_loss",
    "choose_body",
    "curve_target",
    "ensemble_target",
    "heads_target",
    "in_turn",
    "kl_divergence",
    "label_target",
    "last_blocks_tap",
    "mix",
    "mode_target",
    "with_labels",
]
