"""The training loop, and fitting modes, curves, bridges and students with it."""

from modebridge.training.checkpoints import Checkpoints
from modebridge.training.config import TrainConfig
from modebridge.training.distill import distill, fit_students, plan_student
from modebridge.training.engine import Engine
from modebridge.training.epochs import Epoch, Report, TensorBoard, append_metrics, parse_metrics
from modebridge.training.fit import fit_curve, fit_curves, fit_mode, fit_modes
from modebridge.training.fit_bridges import BEST_CUTMIX, PAPER_MIXUP, fit_bridge, fit_bridges
from modebridge.training.loop import Task, train
from modebridge.training.processes import side_by_side

__all__ = [
    "BEST_CUTMIX",
    "PAPER_MIXUP",
    "Checkpoints",
    "Engine",
    "Epoch",
    "Report",
    "Task",
    "TensorBoard",
    "TrainConfig",
    "append_metrics",
    "distill",
    "fit_bridge",
    "fit_bridges",
    "fit_curve",
    "fit_curves",
    "fit_mode",
    "fit_modes",
    "fit_students",
    "parse_metrics",
    "plan_student",
    "side_by_side",
    "train",
]
