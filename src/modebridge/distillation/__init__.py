"""Students: one network that learns to say what several say together."""

from modebridge.distillation.loss import PAPER_LOSS, DistillationLoss
from modebridge.distillation.objective import MixedBatches, StudentObjective, StudentPlan, Teacher

__all__ = ["PAPER_LOSS", "DistillationLoss", "MixedBatches", "StudentObjective", "StudentPlan", "Teacher"]
