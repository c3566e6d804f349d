"""Students, single networks trained to match the mean prediction of several, and curves between students."""

from modebridge.distillation.loss import PAPER_LOSS, DistillationLoss
from modebridge.distillation.objective import MixedBatches, StudentObjective, StudentPlan
from modebridge.distillation.taught_curves import TaughtCurves
from modebridge.distillation.teachers import Teacher, Teachers

__all__ = [
    "PAPER_LOSS",
    "DistillationLoss",
    "MixedBatches",
    "StudentObjective",
    "StudentPlan",
    "TaughtCurves",
    "Teacher",
    "Teachers",
]
