"""Members of ensembles: what each is made from, how it predicts, its cost, and its table rows.

To add a kind, write a subclass of `Member` (and of `Node`, if it is trained) in one file, and register it.
"""

from modebridge.members.baseline import BatchEnsembleMember, MimoMember, PackedMember
from modebridge.members.bridge import (
    BridgeMember as BridgeMember,
    ControlMember as ControlMember,
    SmallNetwork as SmallNetwork,
)
from modebridge.members.curve import Pin as Pin, PointMember as PointMember
from modebridge.members.heads import HeadsMember as HeadsMember
from modebridge.members.member import (
    KINDS as KINDS,
    METHODS as METHODS,
    ArtefactData as ArtefactData,
    Loaded as Loaded,
    Made as Made,
    Member as Member,
    Node as Node,
    Parents as Parents,
    Tensors as Tensors,
    base_epochs as base_epochs,
    file_of_own_kinds as file_of_own_kinds,
    identity as identity,
    key_of as key_of,
    members_of as members_of,
    nodes_behind as nodes_behind,
    nodes_of as nodes_of,
    parse_member as parse_member,
    register as register,
    row_plans as row_plans,
)
from modebridge.members.network import (
    AveragedMember as AveragedMember,
    ModeMember as ModeMember,
    SwaMember as SwaMember,
    TrainedNetwork as TrainedNetwork,
)
from modebridge.members.setting import Setting as Setting
from modebridge.members.student import StudentMember as StudentMember

_KINDS: list[type[Member]] = [ModeMember, HeadsMember, StudentMember, PointMember, BridgeMember, ControlMember]
_KINDS += [AveragedMember, SwaMember, BatchEnsembleMember, MimoMember, PackedMember]
METHODS["distilled"] = StudentMember
for _kind in _KINDS:
    register(_kind)
