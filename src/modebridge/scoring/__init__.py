"""Scores and costs of ensembles: calibration, decisions, DEE, correspondence, curve profiles, FLOPs."""

from modebridge.scoring.advise import advise as advise
from modebridge.scoring.compare import Comparison as Comparison, compare as compare
from modebridge.scoring.correspondence import Correspondence as Correspondence, correspondence as correspondence
from modebridge.scoring.cost import (
    Cost as Cost,
    combination_cost as combination_cost,
    cost as cost,
    module_cost as module_cost,
)
from modebridge.scoring.evaluate import evaluate as evaluate, predict as predict
from modebridge.scoring.logit_table import LogitTable as LogitTable
from modebridge.scoring.profile import (
    CurvePoint as CurvePoint,
    barrier as barrier,
    check_curve as check_curve,
    curve_profile as curve_profile,
)
from modebridge.scoring.scores import (
    FEW as FEW,
    Reliability as Reliability,
    accuracy as accuracy,
    brier as brier,
    dee as dee,
    ece as ece,
    hits as hits,
    interval_of as interval_of,
    nll as nll,
    reliability as reliability,
    resampled_means as resampled_means,
    surprisals as surprisals,
)
from modebridge.scoring.selective import RiskCoverage as RiskCoverage, auroc as auroc, risk_coverage as risk_coverage
from modebridge.scoring.table import (
    MemberCost as MemberCost,
    Row as Row,
    Scored as Scored,
    deep_ensembles as deep_ensembles,
)
