"""Scores and costs of ensembles: calibration, DEE, correspondence, curve profiles, FLOPs."""

from modebridge.scoring.advise import Advice, Effort, advise
from modebridge.scoring.bootstrap import Interval, bootstrap_mean, interval_of, resampled_means
from modebridge.scoring.correspondence import Correspondence, correspondence, kl, r2
from modebridge.scoring.cost import Cost, CostConvention, combination_cost, cost, module_cost
from modebridge.scoring.evaluate import evaluate, predict
from modebridge.scoring.logit_table import ALL, LogitTable, Split
from modebridge.scoring.profile import CurveCheck, CurvePoint, barrier, check_curve, curve_profile
from modebridge.scoring.scores import (
    Reliability,
    accuracy,
    auroc,
    brier,
    check,
    check_probabilities,
    dee,
    ece,
    hits,
    nll,
    reliability,
    surprisals,
)
from modebridge.scoring.table import MemberCost, Row, Scored

__all__ = [
    "ALL",
    "Advice",
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
    "hits",
    "interval_of",
    "kl",
    "module_cost",
    "nll",
    "predict",
    "r2",
    "reliability",
    "resampled_means",
    "surprisals",
]
