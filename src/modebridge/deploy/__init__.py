"""A bridged ensemble as one file for production, and how to run, time and serve it."""

from modebridge.deploy.deployed import Answer, DeployedEnsemble
from modebridge.deploy.export import export
from modebridge.deploy.module import EnsembleModule, Temperatures

__all__ = ["Answer", "DeployedEnsemble", "EnsembleModule", "Temperatures", "export"]
