"""Looking at any network: what its submodules return, what they cost, where a bridge can read."""

from modebridge.inspection.inspect import Inspection, Tap, inspect

__all__ = ["Inspection", "Tap", "inspect"]
