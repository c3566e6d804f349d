"""A bridged ensemble as one file for production, and how to run, time and serve it."""

from modebridge.deploy.deployed import Answer, DeployedEnsemble
from modebridge.deploy.export import export
from modebridge.deploy.module import EnsembleModule, Temperatures, fit_temperatures

Deployed = DeployedEnsemble  # the name of 0.2, while call sites move

__all__ = ["Answer", "Deployed", "DeployedEnsemble", "EnsembleModule", "Temperatures", "export", "fit_temperatures"]
