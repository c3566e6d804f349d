"""Between steps 1 and 2: renumber the units of a mode to match another's; it stays the same function."""

from modebridge.alignment.align import By, Match, Matched, align_modes, find_groups, prove
from modebridge.alignment.groups import Group, Groups
from modebridge.alignment.spec import Spec

__all__ = ["By", "Group", "Groups", "Match", "Matched", "Spec", "align_modes", "find_groups", "prove"]
