"""Inspect any network: what its submodules return, their cost, and which of them a bridge can read."""

from modebridge.inspection.inspect import Inspection, Tap, inspect, listed_taps, taps_to_read

__all__ = ["Inspection", "Tap", "inspect", "listed_taps", "taps_to_read"]
