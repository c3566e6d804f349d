"""Scores and costs of ensembles: calibration, decisions, DEE, correspondence, curve profiles, FLOPs."""

from modebridge.scoring.advise import advise
from modebridge.scoring.correspondence import Correspondence, correspondence
from modebridge.scoring.cost import Cost, combination_cost, cost, module_cost
from modebridge.scoring.evaluate import evaluate, predict
from modebridge.scoring.logit_table import ALL, LogitTable
from modebridge.scoring.profile import CurvePoint, barrier, check_curve, curve_profile
from modebridge.scoring.scores import (
    FEW,
    Reliability,
    accuracy,
    brier,
    dee,
    ece,
    hits,
    interval_of,
    nll,
    reliability,
    resampled_means,
    surprisals,
)
from modebridge.scoring.selective import RiskCoverage, auroc, risk_coverage
from modebridge.scoring.table import MemberCost, Row, Scored

__all__ = [
    "ALL",
    "FEW",
    "Correspondence",
    "Cost",
    "CurvePoint",
    "LogitTable",
    "MemberCost",
    "Reliability",
    "RiskCoverage",
    "Row",
    "Scored",
    "accuracy",
    "advise",
    "auroc",
    "barrier",
    "brier",
    "check_curve",
    "combination_cost",
    "correspondence",
    "cost",
    "curve_profile",
    "dee",
    "ece",
    "evaluate",
    "hits",
    "interval_of",
    "module_cost",
    "nll",
    "predict",
    "reliability",
    "resampled_means",
    "risk_coverage",
    "surprisals",
]
