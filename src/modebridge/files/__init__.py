"""Everything that is stored: written whole or not at all, read without running code, shared on the hub."""

from modebridge.files.checkpoints import load_checkpoint, load_checkpoints
from modebridge.files.folder import copy_folder, load, push, read_folder, save
from modebridge.files.hub import Card, check_repo, download, upload
from modebridge.files.rebuilding import describe, full_name, library_factory

__all__ = [
    "Card",
    "check_repo",
    "copy_folder",
    "describe",
    "download",
    "full_name",
    "library_factory",
    "load",
    "load_checkpoint",
    "load_checkpoints",
    "push",
    "read_folder",
    "save",
    "upload",
]
