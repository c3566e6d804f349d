"""A bridged ensemble as one file for production, and how to run, time and serve it."""

from modebridge.deploy.deployed import Answer, DeployedEnsemble
from modebridge.deploy.export import export
from modebridge.deploy.module import Calibration, EnsembleModule

__all__ = ["Answer", "Calibration", "DeployedEnsemble", "EnsembleModule", "export"]
