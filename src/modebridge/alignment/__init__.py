"""Between steps 1 and 2: permute the units of a mode to match another's, without changing the function."""

from modebridge.alignment.align import Alignment, By, Match, align, find_groups
from modebridge.alignment.groups import Group, Groups, Spec
from modebridge.alignment.proof import prove

__all__ = ["Alignment", "By", "Group", "Groups", "Match", "Spec", "align", "find_groups", "prove"]
