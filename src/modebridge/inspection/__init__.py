"""Inspect any network: what its submodules return, their cost, and which of them a bridge can read."""

from modebridge.inspection.inspect import Inspection, Tap, inspect

__all__ = ["Inspection", "Tap", "inspect"]
