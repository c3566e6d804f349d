"""Checks of teachers before training."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from modebridge.batches import Checked, flatten, take_rows
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, check_modes
from modebridge.objectives import Teacher
from modebridge.training.checks import classes_of

__all__ = ["check_teachers", "listed_teachers"]


def listed_teachers(given: Sequence[Teacher] | Teacher) -> tuple[Teacher, ...]:
    """Teachers as a tuple, even if only one is given; raises an error if one is neither a mode nor an ensemble."""
    teachers = (given,) if isinstance(given, Mode | Ensemble) else tuple(given)
    for teacher in teachers:
        if not isinstance(teacher, Mode | Ensemble):
            raise ModebridgeError(
                f"Expected teachers to be modes or bridged ensembles, but got {type(teacher).__name__}; create a mode "
                "with Mode.from_module."
            )
    return teachers


@torch.no_grad()
def check_teachers(net: nn.Module, teachers: Sequence[Teacher], data: Checked, learner: str) -> None:
    """Raise an error if a mode does not fit the network, or a teacher's number of classes differs from the learner's.

    Args:
        net: the network of the teachers that are modes.
        teachers: all teachers.
        data: knows the number of classes, and provides an image.
        learner: the name of the learner in errors: "student", "curve".
    """
    modes = [teacher for teacher in teachers if isinstance(teacher, Mode)]
    if modes:
        check_modes(net, modes, 1, "distillation")
    image = take_rows(data.first(), slice(0, 1))
    for teacher in teachers:
        # Run a copy of an ensemble, on the image's device.
        classes = (
            classes_of(net, teacher, image, "train")
            if isinstance(teacher, Mode)
            else copy.deepcopy(teacher).to(next(iter(flatten(image).values())).device).members(image).shape[-1]
        )
        if classes != data.classes:
            raise ModebridgeError(
                f"Expected teachers with {data.classes} classes like the {learner}, but one has {classes}; use "
                f"a {learner} with the same last layer."
            )
