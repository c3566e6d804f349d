"""Progress bars of library calls."""

from modebridge.progress.bar import Bar, no_bars, progress_bar, shows_progress

__all__ = ["Bar", "no_bars", "progress_bar", "shows_progress"]
