"""The training loop, and fitting modes, curves, bridges and students with it."""

from modebridge.training.bridging import BEST_CUTMIX, PAPER_MIXUP, fit_bridge, fit_many
from modebridge.training.checkpoints import Checkpoints
from modebridge.training.config import TrainConfig
from modebridge.training.engine import Engine
from modebridge.training.epochs import Epoch, Report, TensorBoard
from modebridge.training.fit import fit_curve, fit_curves, fit_modes
from modebridge.training.loop import Task, train
from modebridge.training.students import distill, fit_students

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
