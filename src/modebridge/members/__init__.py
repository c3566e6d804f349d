"""Members of ensembles, one file per kind: what each is made from, how it predicts, its cost, and its table rows.

To add a kind, write a subclass of `Member` in its own file, and add a line below.
"""

from modebridge.members.artefact import Artefact, ArtefactData, Parents, Tensors, key_of
from modebridge.members.batch_ensemble_member import BatchEnsembleMember
from modebridge.members.bridge_member import BridgeMember
from modebridge.members.control_member import ControlMember
from modebridge.members.curve_member import PointMember, load_curve
from modebridge.members.curve_weights import CurveWeights, curve_and_ends
from modebridge.members.heads_member import HeadsMember
from modebridge.members.member import (
    KINDS,
    METHODS,
    Body,
    Member,
    Method,
    file_of_own_kinds,
    members_of,
    parse_member,
    register,
    row_plans,
)
from modebridge.members.mimo_member import MimoMember
from modebridge.members.mode_member import BASES, ModeMember, ModeWeights, mode_on
from modebridge.members.packed_member import PackedMember
from modebridge.members.predictor import BridgePredictor, NetworkPredictor, Outputs, Predictor
from modebridge.members.setting import Setting
from modebridge.members.student_member import DistilledMember, StudentMember
from modebridge.members.swa_member import SwaMember, SwaWeights
from modebridge.members.training_cost import artefacts_behind, base_epochs, trained_alike

register(ModeMember)
register(PointMember)
register(BridgeMember)
register(ControlMember)
register(HeadsMember)
register(DistilledMember)
register(StudentMember)
register(SwaMember)
register(BatchEnsembleMember)
register(MimoMember)
register(PackedMember)

BASES["swa"] = SwaWeights

__all__ = [
    "BASES",
    "KINDS",
    "METHODS",
    "Artefact",
    "ArtefactData",
    "BatchEnsembleMember",
    "Body",
    "BridgeMember",
    "BridgePredictor",
    "ControlMember",
    "CurveWeights",
    "DistilledMember",
    "HeadsMember",
    "Member",
    "Method",
    "MimoMember",
    "ModeMember",
    "ModeWeights",
    "NetworkPredictor",
    "Outputs",
    "PackedMember",
    "Parents",
    "PointMember",
    "Predictor",
    "Setting",
    "StudentMember",
    "SwaMember",
    "Tensors",
    "artefacts_behind",
    "base_epochs",
    "curve_and_ends",
    "file_of_own_kinds",
    "key_of",
    "load_curve",
    "members_of",
    "mode_on",
    "parse_member",
    "register",
    "row_plans",
    "trained_alike",
]
