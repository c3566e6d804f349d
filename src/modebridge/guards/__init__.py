"""Run third-party modules safely: inputs and state stay unchanged, wrong tensors are refused, bugs of torch avoided."""

from modebridge.guards.cuda_graph import CudaGraph
from modebridge.guards.evaluation_only import EvaluationOnly
from modebridge.guards.narrow_convolutions import correct_conv_gradients
from modebridge.guards.same_architecture import same_architecture
from modebridge.guards.without_side_effects import tracing, version, without_side_effects

__all__ = [
    "CudaGraph",
    "EvaluationOnly",
    "correct_conv_gradients",
    "same_architecture",
    "tracing",
    "version",
    "without_side_effects",
]
