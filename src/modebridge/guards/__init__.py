"""Run third-party modules safely: inputs and state stay unchanged, wrong tensors are refused, bugs of torch avoided."""

from modebridge.guards.alike import alike
from modebridge.guards.cuda_graph import CudaGraph
from modebridge.guards.evaluation_only import EvaluationOnly
from modebridge.guards.narrow_convolutions import soundly
from modebridge.guards.untouched import tracing, untouched, version

__all__ = ["CudaGraph", "EvaluationOnly", "alike", "soundly", "tracing", "untouched", "version"]
