"""Bridge networks: part of a deep ensemble's gain at nearly the cost of one forward pass.

Train (or load) modes, connect two with a curve, train a bridge to predict the curve's midpoint, and average.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # `typing` is not imported here: imports of this file run before Ctrl-C is handled
if TYPE_CHECKING:
    from typing import Any

    from modebridge.alignment.align import align

    # A function with the name of its file is imported from that file: elsewhere mypy takes it for the module.
    from modebridge.bridges import Bridge, plan_bridge
    from modebridge.bridges.inspect import inspect
    from modebridge.curves import Curve
    from modebridge.deploy import DeployedEnsemble
    from modebridge.deploy.export import export
    from modebridge.ensembles import Ensemble
    from modebridge.errors import ModebridgeError
    from modebridge.files import load, load_checkpoint, load_checkpoints
    from modebridge.losses import PAPER_LOSS, DistillationLoss
    from modebridge.modes import Mode
    from modebridge.scoring.cost import cost
    from modebridge.scoring.evaluate import evaluate
    from modebridge.training import (
        Engine,
        TrainConfig,
        fit_bridge,
        fit_curve,
        fit_curves,
        fit_mode,
        fit_modes,
        fit_students,
        plan_student,
    )
    from modebridge.training.distill import distill
    from modebridge.training.fit_bridges import fit_bridges

__version__ = "0.2.0"

__all__ = [
    "PAPER_LOSS",
    "Bridge",
    "Curve",
    "DeployedEnsemble",
    "DistillationLoss",
    "Engine",
    "Ensemble",
    "Mode",
    "ModebridgeError",
    "TrainConfig",
    "__version__",
    "align",
    "cost",
    "distill",
    "evaluate",
    "export",
    "fit_bridge",
    "fit_bridges",
    "fit_curve",
    "fit_curves",
    "fit_mode",
    "fit_modes",
    "fit_students",
    "inspect",
    "load",
    "load_checkpoint",
    "load_checkpoints",
    "plan_bridge",
    "plan_student",
]

_NAMES = {
    "alignment": ("align",),
    "bridges": ("Bridge", "inspect", "plan_bridge"),
    "curves": ("Curve",),
    "deploy": ("Deployed", "DeployedEnsemble", "export"),
    "losses": ("PAPER_LOSS", "DistillationLoss"),
    "ensembles": ("Ensemble",),
    "errors": ("ModebridgeError",),
    "scoring": ("cost", "evaluate"),
    "files": ("load", "load_checkpoint", "load_checkpoints"),
    "modes": ("Mode",),
    "training": (
        *("Engine", "TrainConfig", "distill", "fit_bridge", "fit_bridges", "fit_curve", "fit_curves"),
        *("fit_mode", "fit_modes", "fit_students", "plan_student"),
    ),
}
_RENAMED = {
    "BezierCurve": "Curve",
    "BridgedEnsemble": "Ensemble",
    "load_mode": "load_checkpoint",
    "load_modes": "load_checkpoints",
}
"""Names of version 0.2, which still work."""
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name on first use: importing torch takes seconds, and the program must react to `--help` before that."""
    if name in _RENAMED:
        import warnings

        warnings.warn(f"modebridge.{name} is now called {_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        return __getattr__(_RENAMED[name])
    if name in _HOMES:
        value = getattr(import_module(f"modebridge.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_"):
        try:
            return import_module(f"modebridge.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"modebridge.{name}":
                raise
    raise AttributeError(f"module 'modebridge' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
