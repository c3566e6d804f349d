"""Step 2: connect two modes with a low-loss curve."""

from modebridge.curves.bezier import BezierCurve, bernstein
from modebridge.curves.curve import Curve, check_r
from modebridge.curves.objective import CurveKind, CurveObjective, PinStart, start_curve
from modebridge.curves.polychain import Polychain

__all__ = [
    "BezierCurve",
    "Curve",
    "CurveKind",
    "CurveObjective",
    "PinStart",
    "Polychain",
    "bernstein",
    "check_r",
    "start_curve",
]
