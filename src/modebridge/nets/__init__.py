"""The paper's networks, and how to run, inspect and count any network. Independent of the method."""

from modebridge.nets.architecture import same_architecture
from modebridge.nets.blocks import (
    BasicBlock,
    BottleneckBlock,
    FilterResponseNorm,
    Norm,
    SameConv2d,
    fresh_weights,
    initialise,
)
from modebridge.nets.quirks import tracing
from modebridge.nets.resnet import SPECS, ResNet, ResNetSpec, last_blocks_tap, resnet, spec_of
from modebridge.nets.running import (
    Tapped,
    Taps,
    call,
    check_tap,
    frozen_copy,
    logits_of,
    run,
)
from modebridge.nets.taps import Inspection, Tap, find_taps, listed_taps, taps_to_read

__all__ = [
    "SPECS",
    "BasicBlock",
    "BottleneckBlock",
    "FilterResponseNorm",
    "Inspection",
    "Norm",
    "ResNet",
    "ResNetSpec",
    "SameConv2d",
    "Tap",
    "Tapped",
    "Taps",
    "call",
    "check_tap",
    "find_taps",
    "fresh_weights",
    "frozen_copy",
    "initialise",
    "last_blocks_tap",
    "listed_taps",
    "logits_of",
    "resnet",
    "run",
    "same_architecture",
    "spec_of",
    "taps_to_read",
    "tracing",
]
