"""Between steps 1 and 2: permute the units of a mode to match another's, without changing the function."""

from modebridge.alignment.align import (
    Alignment as Alignment,
    By as By,
    Match as Match,
    align as align,
    find_groups as find_groups,
)
from modebridge.alignment.groups import Group as Group, Groups as Groups, Spec as Spec
from modebridge.alignment.proof import prove as prove
