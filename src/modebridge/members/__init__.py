"""Members of ensembles: what each is made from, how it predicts, its cost, and its table rows.

To add a kind, write a subclass of `Member` (and of `Node`, if it is trained) in one file, and register it.
"""

from modebridge.members.baseline import BatchEnsembleMember, MimoMember, PackedMember
from modebridge.members.bridge import BridgeMember, ControlMember, SmallNetwork
from modebridge.members.curve import Pin, PointMember, load_curve
from modebridge.members.heads import HeadsMember
from modebridge.members.member import (
    KINDS,
    METHODS,
    ArtefactData,
    Loaded,
    Made,
    Member,
    Method,
    Node,
    Parents,
    Tensors,
    base_epochs,
    file_of_own_kinds,
    identity,
    key_of,
    members_of,
    nodes_behind,
    parse_member,
    register,
    row_plans,
)
from modebridge.members.network import ModeMember, SwaMember
from modebridge.members.setting import Setting
from modebridge.members.student import StudentMember

_KINDS: list[type[Member]] = [ModeMember, PointMember, BridgeMember, ControlMember, HeadsMember, StudentMember]
_KINDS += [SwaMember, BatchEnsembleMember, MimoMember, PackedMember]
for _kind in _KINDS:
    register(_kind)
METHODS["distilled"] = StudentMember

__all__ = [
    "KINDS",
    "METHODS",
    "ArtefactData",
    "BridgeMember",
    "ControlMember",
    "HeadsMember",
    "Loaded",
    "Made",
    "Member",
    "Method",
    "ModeMember",
    "Node",
    "Parents",
    "Pin",
    "PointMember",
    "Setting",
    "SmallNetwork",
    "StudentMember",
    "SwaMember",
    "Tensors",
    "base_epochs",
    "file_of_own_kinds",
    "identity",
    "key_of",
    "load_curve",
    "members_of",
    "nodes_behind",
    "parse_member",
    "register",
    "row_plans",
]
