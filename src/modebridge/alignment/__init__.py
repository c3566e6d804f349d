"""Between steps 1 and 2: permute the units of a mode to match another's, without changing the function."""

from modebridge.alignment.align import By, Fed, Match, Matched, align_modes, device_for, find_groups
from modebridge.alignment.groups import Group, Groups
from modebridge.alignment.proof import prove
from modebridge.alignment.sample import sample
from modebridge.alignment.spec import Spec

__all__ = [
    "By",
    "Fed",
    "Group",
    "Groups",
    "Match",
    "Matched",
    "Spec",
    "align_modes",
    "device_for",
    "find_groups",
    "prove",
    "sample",
]
