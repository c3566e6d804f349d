"""Bridge networks: most of a deep ensemble at nearly the cost of one forward pass.

Train (or bring) modes, connect two by a curve, learn a bridge that predicts the middle of the curve, and average.
"""

from modebridge.bridges import Bridge
from modebridge.curves import BezierCurve, Polychain
from modebridge.data import load_mode, load_modes
from modebridge.deploy import Deployed, export
from modebridge.ensembles import BridgedEnsemble
from modebridge.errors import ModebridgeError
from modebridge.evaluate import align, cost, evaluate
from modebridge.modes import Mode
from modebridge.nets import inspect
from modebridge.training import (
    Engine,
    TrainConfig,
    fit_bridge,
    fit_bridges,
    fit_curve,
    fit_curves,
    fit_mode,
    fit_modes,
    plan_bridge,
)

__version__ = "0.1.0"

__all__ = [
    "BezierCurve",
    "Bridge",
    "BridgedEnsemble",
    "Deployed",
    "Engine",
    "Mode",
    "ModebridgeError",
    "Polychain",
    "TrainConfig",
    "__version__",
    "align",
    "cost",
    "evaluate",
    "export",
    "fit_bridge",
    "fit_bridges",
    "fit_curve",
    "fit_curves",
    "fit_mode",
    "fit_modes",
    "inspect",
    "load_mode",
    "load_modes",
    "plan_bridge",
]
