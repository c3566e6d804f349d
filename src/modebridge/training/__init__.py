"""The training loop, and fitting modes, curves, bridges and students with it."""

from modebridge.training.bridging import (
    BEST_CUTMIX as BEST_CUTMIX,
    PAPER_MIXUP as PAPER_MIXUP,
    fit_bridge as fit_bridge,
    fit_many as fit_many,
)
from modebridge.training.config import Engine as Engine, TrainConfig as TrainConfig
from modebridge.training.fit import fit_curve as fit_curve, fit_curves as fit_curves, fit_modes as fit_modes
from modebridge.training.loop import Task as Task, train as train
from modebridge.training.progress import (
    Checkpoints as Checkpoints,
    Epoch as Epoch,
    Report as Report,
    TensorBoard as TensorBoard,
)
from modebridge.training.students import (
    distill as distill,
    fit_students as fit_students,
    fresh_mode as fresh_mode,
)
