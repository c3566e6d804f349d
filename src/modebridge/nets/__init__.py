"""The paper's networks, and how to run, inspect and count any network. Independent of the method."""

from modebridge.nets.architecture import (
    check_given as check_given,
    check_ties as check_ties,
    same_architecture as same_architecture,
)
from modebridge.nets.blocks import (
    BasicBlock as BasicBlock,
    BottleneckBlock as BottleneckBlock,
    FilterResponseNorm as FilterResponseNorm,
    Norm as Norm,
    SameConv2d as SameConv2d,
    fresh_weights as fresh_weights,
    initialise as initialise,
    is_attentive as is_attentive,
)
from modebridge.nets.quirks import tracing as tracing
from modebridge.nets.resnet import (
    SPECS as SPECS,
    ResNet as ResNet,
    ResNetSpec as ResNetSpec,
    last_blocks_tap as last_blocks_tap,
    resnet as resnet,
    spec_of as spec_of,
)
from modebridge.nets.running import (
    Tapped as Tapped,
    Taps as Taps,
    call as call,
    check_tap as check_tap,
    classes_last as classes_last,
    frozen_copy as frozen_copy,
    logits_of as logits_of,
    run as run,
    run_at as run_at,
    second as second,
)
from modebridge.nets.taps import (
    Inspection as Inspection,
    Tap as Tap,
    find_taps as find_taps,
    listed_taps as listed_taps,
    taps_to_read as taps_to_read,
)
