"""Scores and costs of ensembles: calibration, DEE, correspondence, curve profiles, FLOPs."""

from modebridge.evaluate.advice import Advice, Choice, advise
from modebridge.evaluate.align_and_measure import Alignment, align
from modebridge.evaluate.answers import Answers, Combined, MemberCost
from modebridge.evaluate.bootstrap import Interval, bootstrap_mean, interval_of, resampled_means
from modebridge.evaluate.cascade import ALL, cascaded, choose_threshold
from modebridge.evaluate.correspondence import Average, Correspondence, correspondence, kl, r2
from modebridge.evaluate.cost import (
    Cost,
    CostConvention,
    combination_cost,
    cost,
    feature_shapes,
    module_cost,
)
from modebridge.evaluate.detection import auroc, fpr_at, negative_entropy, top_probability
from modebridge.evaluate.effort import Effort
from modebridge.evaluate.equivalence import DeeConvention, dee
from modebridge.evaluate.evaluate import Scores, evaluate, predict
from modebridge.evaluate.profile import (
    CurveCheck,
    CurvePoint,
    barrier,
    check_curve,
    curve_profile,
    is_low_loss,
    judge_curve,
)
from modebridge.evaluate.scores import (
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
from modebridge.evaluate.tap_costs import inspect

__all__ = [
    "ALL",
    "Advice",
    "Alignment",
    "Answers",
    "Average",
    "Choice",
    "Combined",
    "Correspondence",
    "Cost",
    "CostConvention",
    "CurveCheck",
    "CurvePoint",
    "DeeConvention",
    "Effort",
    "Interval",
    "MemberCost",
    "Reliability",
    "Scores",
    "accuracy",
    "advise",
    "align",
    "auroc",
    "barrier",
    "bootstrap_mean",
    "brier",
    "cascaded",
    "check",
    "check_curve",
    "check_probabilities",
    "choose_threshold",
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
    "inspect",
    "interval_of",
    "is_low_loss",
    "judge_curve",
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
