"""A bridged ensemble as one file for production, and how to run, time and serve it."""

from modebridge.deploy.deployed import Answer as Answer, DeployedEnsemble as DeployedEnsemble
from modebridge.deploy.export import export as export
from modebridge.deploy.module import Calibration as Calibration, EnsembleModule as EnsembleModule
