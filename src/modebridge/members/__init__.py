"""Members of ensembles, one file per kind: what each is made from, how it predicts, what it costs, how tables show it.

A new kind is a subclass of `Member` in a file of its own, and a line below.
"""

from modebridge.members.artefact import Artefact, Made, Making, Tensors, key_of
from modebridge.members.batch_ensemble_member import BatchEnsembleMember
from modebridge.members.bridge_member import BridgeMember
from modebridge.members.context import Blueprint, Context
from modebridge.members.control_member import ControlMember
from modebridge.members.curve_member import CurveWeights, PointMember, load_curve
from modebridge.members.mc_dropout_member import McDropoutMember
from modebridge.members.member import (
    KINDS,
    METHODS,
    Body,
    Member,
    Method,
    RowPlan,
    file_of_own_kinds,
    members_of,
    parse_member,
    register,
    row_plans,
)
from modebridge.members.mimo_member import MimoMember
from modebridge.members.mode_member import ModeMember, ModeWeights
from modebridge.members.packed_member import PackedMember
from modebridge.members.predictor import BridgePredictor, NetworkPredictor, Outputs, Predictor
from modebridge.members.training_cost import artefacts_behind, base_epochs

register(ModeMember)
register(PointMember)
register(BridgeMember)
register(ControlMember)
register(BatchEnsembleMember)
register(MimoMember)
register(PackedMember)
register(McDropoutMember)

__all__ = [
    "KINDS",
    "METHODS",
    "Artefact",
    "BatchEnsembleMember",
    "Blueprint",
    "Body",
    "BridgeMember",
    "BridgePredictor",
    "Context",
    "ControlMember",
    "CurveWeights",
    "Made",
    "Making",
    "McDropoutMember",
    "Member",
    "Method",
    "MimoMember",
    "ModeMember",
    "ModeWeights",
    "NetworkPredictor",
    "Outputs",
    "PackedMember",
    "PointMember",
    "Predictor",
    "RowPlan",
    "Tensors",
    "artefacts_behind",
    "base_epochs",
    "file_of_own_kinds",
    "key_of",
    "load_curve",
    "members_of",
    "parse_member",
    "register",
    "row_plans",
]
