"""Step 4: average the members' probabilities, calibrate the mean, and decide."""

from modebridge.ensembles.cascade import Cascade as Cascade
from modebridge.ensembles.decisions import (
    AnswerRule as AnswerRule,
    Method as Method,
    SetRule as SetRule,
    cascade_threshold as cascade_threshold,
)
from modebridge.ensembles.ensemble import Ensemble as Ensemble
from modebridge.ensembles.forward import (
    ALL as ALL,
    Bases as Bases,
    EvaluationOnly as EvaluationOnly,
    Mean as Mean,
    Output as Output,
    average as average,
    cascaded as cascaded,
    deferring as deferring,
    features_of as features_of,
    labeled as labeled,
    member_logits as member_logits,
    probabilities_of as probabilities_of,
)
from modebridge.ensembles.temperature import fit_temperature as fit_temperature, scale as scale
