"""Everything that is stored: written whole or not at all, read without running code, shared on the hub."""

from modebridge.files.checkpoints import load_checkpoint as load_checkpoint, load_checkpoints as load_checkpoints
from modebridge.files.folder import (
    copy_folder as copy_folder,
    load as load,
    push as push,
    read_folder as read_folder,
    save as save,
)
from modebridge.files.hub import Card as Card, check_repo as check_repo, download as download, upload as upload
from modebridge.files.rebuilding import describe as describe, full_name as full_name, library_factory as library_factory
