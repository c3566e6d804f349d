"""The training loop, and fitting modes, curves, bridges and students with it."""

from modebridge.training.bridging import BEST_CUTMIX, PAPER_MIXUP, fit_bridge, fit_many
from modebridge.training.config import Engine, TrainConfig
from modebridge.training.fit import distill, fit_curve, fit_curves, fit_modes, fit_students
from modebridge.training.loop import Task, train
from modebridge.training.progress import Checkpoints, Epoch, Report, TensorBoard

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
    "distill",
    "fit_bridge",
    "fit_curve",
    "fit_curves",
    "fit_many",
    "fit_modes",
    "fit_students",
    "train",
]
