"""A bridged ensemble as one module and one file for production, and how to run it."""

from modebridge.deploy.bridge_temperatures import Temperatures, fit_temperatures
from modebridge.deploy.deployed import Deployed, UncheckedFileWarning
from modebridge.deploy.elastic_answer import ALL, Answer
from modebridge.deploy.export import Exported, export
from modebridge.deploy.one_module import OneModule
from modebridge.deploy.quantise import Int8Cost
from modebridge.deploy.thresholds import TradeOff, choose_threshold, gated, trade_off

__all__ = [
    "ALL",
    "Answer",
    "Deployed",
    "Exported",
    "Int8Cost",
    "OneModule",
    "Temperatures",
    "TradeOff",
    "UncheckedFileWarning",
    "choose_threshold",
    "export",
    "fit_temperatures",
    "gated",
    "trade_off",
]
