"""Methods to compare bridges with: ensembles inside one network, each a module that returns logits (M * B, K)."""

from modebridge.rivals.batch_ensemble import BatchEnsemble, RankOne
from modebridge.rivals.mc_dropout import McDropout, with_dropout
from modebridge.rivals.mimo import Mimo, MimoObjective
from modebridge.rivals.packed import Packed
from modebridge.rivals.rival import MeanOfMembers, Rival, RivalObjective

__all__ = [
    "BatchEnsemble",
    "McDropout",
    "MeanOfMembers",
    "Mimo",
    "MimoObjective",
    "Packed",
    "RankOne",
    "Rival",
    "RivalObjective",
    "with_dropout",
]
