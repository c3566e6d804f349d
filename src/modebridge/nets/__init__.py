"""The paper's networks, and running any network at any parameters. Knows nothing of curves."""

from modebridge.nets.blocks import BasicBlock, BottleneckBlock, SameConv2d, initialise
from modebridge.nets.functional import (
    Tapped,
    call,
    check_tap,
    feature_of,
    logits_of,
    run,
    run_with_taps,
    skeleton,
    tap_names,
)
from modebridge.nets.norms import FilterResponseNorm, Norm, make_norm
from modebridge.nets.resnet import SPECS, ResNet, ResNetSpec, resnet, spec_of

__all__ = [
    "SPECS",
    "BasicBlock",
    "BottleneckBlock",
    "FilterResponseNorm",
    "Norm",
    "ResNet",
    "ResNetSpec",
    "SameConv2d",
    "Tapped",
    "call",
    "check_tap",
    "feature_of",
    "initialise",
    "logits_of",
    "make_norm",
    "resnet",
    "run",
    "run_with_taps",
    "skeleton",
    "spec_of",
    "tap_names",
]
