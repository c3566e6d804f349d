"""Scores and costs of ensembles: calibration, DEE, correspondence, curve profiles, FLOPs."""

from modebridge.scoring.advise import Advice, Effort, advise
from modebridge.scoring.bootstrap import Interval, bootstrap_mean, interval_of, resampled_means
from modebridge.scoring.correspondence import Average, Correspondence, correspondence, kl, r2
from modebridge.scoring.cost import (
    Cost,
    CostConvention,
    combination_cost,
    cost,
    feature_shapes,
    module_cost,
)
from modebridge.scoring.dee import dee
from modebridge.scoring.detection import auroc, fpr_at, negative_entropy, top_probability
from modebridge.scoring.evaluate import evaluate, predict
from modebridge.scoring.logit_table import ALL, LogitTable, Split
from modebridge.scoring.profile import (
    CurveCheck,
    CurvePoint,
    barrier,
    check_curve,
    curve_profile,
)
from modebridge.scoring.scores import (
    Reliability,
    accuracy,
    brier,
    check,
    check_probabilities,
    ece,
    hits,
    nll,
    reliability,
    squared_errors,
    surprisals,
)
from modebridge.scoring.table import MemberCost, Row, Scored

__all__ = [
    "ALL",
    "Advice",
    "Average",
    "Correspondence",
    "Cost",
    "CostConvention",
    "CurveCheck",
    "CurvePoint",
    "Effort",
    "Interval",
    "LogitTable",
    "MemberCost",
    "Reliability",
    "Row",
    "Scored",
    "Split",
    "accuracy",
    "advise",
    "auroc",
    "barrier",
    "bootstrap_mean",
    "brier",
    "check",
    "check_curve",
    "check_probabilities",
    "combination_cost",
    "correspondence",
    "cost",
    "curve_profile",
    "dee",
    "ece",
    "evaluate",
    "feature_shapes",
    "fpr_at",
    "hits",
    "interval_of",
    "kl",
    "module_cost",
    "negative_entropy",
    "nll",
    "predict",
    "r2",
    "reliability",
    "resampled_means",
    "squared_errors",
    "surprisals",
    "top_probability",
]
