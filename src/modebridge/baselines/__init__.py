"""Methods to compare bridges with: ensembles inside one network, each a module that returns logits (M * B, K)."""

from modebridge.baselines.baseline import (
    Baseline as Baseline,
    BaselineObjective as BaselineObjective,
    MeanOfMembers as MeanOfMembers,
)
from modebridge.baselines.batch_ensemble import BatchEnsemble as BatchEnsemble, RankOne as RankOne
from modebridge.baselines.mimo import Mimo as Mimo, MimoObjective as MimoObjective
from modebridge.baselines.packed import Packed as Packed
