"""Students, single networks trained to match the mean prediction of several."""

from modebridge.distillation.loss import PAPER_LOSS, DistillationLoss
from modebridge.distillation.objective import MixedBatches, StudentObjective, StudentPlan
from modebridge.distillation.teachers import Teacher, Teachers

__all__ = [
    "PAPER_LOSS",
    "DistillationLoss",
    "MixedBatches",
    "StudentObjective",
    "StudentPlan",
    "Teacher",
    "Teachers",
]
