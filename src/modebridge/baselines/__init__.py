"""Methods to compare bridges with: ensembles inside one network, each a module that returns logits (M * B, K)."""

from modebridge.baselines.baseline import Baseline, BaselineObjective, MeanOfMembers
from modebridge.baselines.batch_ensemble import BatchEnsemble, RankOne
from modebridge.baselines.mimo import Mimo, MimoObjective
from modebridge.baselines.packed import Packed

__all__ = [
    "Baseline",
    "BaselineObjective",
    "BatchEnsemble",
    "MeanOfMembers",
    "Mimo",
    "MimoObjective",
    "Packed",
    "RankOne",
]
