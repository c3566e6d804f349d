"""The paper's networks, and functions to run any network with given parameters. Independent of curves."""

from modebridge.guards.outputs import logits_of
from modebridge.nets.blocks import BasicBlock, BottleneckBlock, SameConv2d, initialise
from modebridge.nets.functional import Tapped, call, frozen_copy, run
from modebridge.nets.norms import FilterResponseNorm, Norm, make_norm
from modebridge.nets.probabilities import (
    MEANS,
    Mean,
    average,
    check_mean,
    logarithmic_mean,
    mean_probability,
    probabilities_of,
)
from modebridge.nets.resnet import SPECS, ResNet, ResNetSpec, last_blocks_tap, resnet, spec_of
from modebridge.nets.taps import Taps, check_tap, tap_names

__all__ = [
    "MEANS",
    "SPECS",
    "BasicBlock",
    "BottleneckBlock",
    "FilterResponseNorm",
    "Mean",
    "Norm",
    "ResNet",
    "ResNetSpec",
    "SameConv2d",
    "Tapped",
    "Taps",
    "average",
    "call",
    "check_mean",
    "check_tap",
    "frozen_copy",
    "initialise",
    "last_blocks_tap",
    "logarithmic_mean",
    "logits_of",
    "make_norm",
    "mean_probability",
    "probabilities_of",
    "resnet",
    "run",
    "spec_of",
    "tap_names",
]
