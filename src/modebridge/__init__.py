"""One model of several trained classifiers: nearly as good as their average, at nearly the cost of one.

Train (or load) modes, train a bridge to predict others from a feature of the first, and average.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # `typing` is not imported: `modebridge --help` must be fast
if TYPE_CHECKING:
    from typing import Any

    # A function with the name of its file is imported from that file: elsewhere mypy takes it for the module.
    from modebridge.alignment.align import align
    from modebridge.bridges import Bridge
    from modebridge.bridges.build import inspect
    from modebridge.curves import Curve
    from modebridge.deploy import DeployedEnsemble
    from modebridge.deploy.export import export
    from modebridge.ensembles import Cascade, Ensemble
    from modebridge.errors import ModebridgeError
    from modebridge.files import load, load_checkpoint, load_checkpoints
    from modebridge.modes import Mode
    from modebridge.scoring.compare import compare
    from modebridge.scoring.evaluate import evaluate
    from modebridge.training import TrainConfig, distill, fit_bridge, fit_curve, fit_modes

__version__ = "0.3.0.dev0"

__all__ = [
    "Bridge",
    "Cascade",
    "Curve",
    "DeployedEnsemble",
    "Ensemble",
    "Mode",
    "ModebridgeError",
    "TrainConfig",
    "__version__",
    "align",
    "compare",
    "distill",
    "evaluate",
    "export",
    "fit_bridge",
    "fit_curve",
    "fit_modes",
    "inspect",
    "load",
    "load_checkpoint",
    "load_checkpoints",
]

_NAMES = {
    "alignment": ("align",),
    "bridges": ("Bridge", "inspect"),
    "curves": ("Curve",),
    "deploy": ("DeployedEnsemble", "export"),
    "ensembles": ("Cascade", "Ensemble"),
    "errors": ("ModebridgeError",),
    "files": ("load", "load_checkpoint", "load_checkpoints"),
    "modes": ("Mode",),
    "scoring": ("compare", "evaluate"),
    "training": ("TrainConfig", "distill", "fit_bridge", "fit_curve", "fit_modes"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

_RENAMED = {
    "BezierCurve": "curves.Curve",
    "BridgedEnsemble": "ensembles.Ensemble",
    "Deployed": "deploy.DeployedEnsemble",
    "DistillationLoss": "matching.DistillationLoss",
    "Engine": "training.Engine",
    "PAPER_LOSS": "matching.PAPER_LOSS",
    "cost": "scoring.cost",
    "fit_curves": "training.fit_curves",
    "fit_students": "training.fit_students",
    "load_mode": "files.load_checkpoint",
    "load_modes": "files.load_checkpoints",
    "plan_bridge": "bridges.plan_bridge",
}
"""Names of version 0.2 that work until version 0.4, and where they are now."""

_GONE = {
    "Polychain": "Curve, with more pins",
    "fit_bridges": "modebridge.training.fit_many(net, bridges, train, config)",
    "fit_mode": "fit_modes([net], train, config)[0]",
    "fit_taught_curves": "fit_curve, which learns labels",
    "plan_student": "distill, or modebridge.objectives.StudentPlan",
}
"""Names of version 0.2 that are gone, and what to use instead."""


def __getattr__(name: str) -> Any:
    """Import a name on first use: importing torch takes seconds, and the program must react to `--help` before that."""
    if name in _RENAMED:
        import warnings

        home, _, new = _RENAMED[name].rpartition(".")
        warnings.warn(f"modebridge.{name} is now modebridge.{home}.{new}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(f"modebridge.{home}"), new)
    if name in _HOMES:
        value = globals()[name] = getattr(import_module(f"modebridge.{_HOMES[name]}"), name)
        return value
    if name in ("save", "calibrate"):
        raise AttributeError(f"modebridge.{name} is a method: ensemble.{name}(...)")
    if name in _GONE:
        raise AttributeError(f"modebridge.{name} of version 0.2 is gone; use {_GONE[name]}")
    if not name.startswith("_"):
        try:
            return import_module(f"modebridge.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"modebridge.{name}":
                raise
    from modebridge.errors import near

    said = "" if name.startswith("_") else f"; {near(name, __all__, 3)}"
    raise AttributeError(f"module 'modebridge' has no attribute '{name}'{said}", obj=name)  # else Python adds its own


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
