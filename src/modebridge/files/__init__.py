"""Objects as folders of safetensors and JSON: written atomically, read without running code, shared on the hub."""

from modebridge.files.architectures import describe_net, full_name, library_factory, restore_net
from modebridge.files.card import Card, Metric
from modebridge.files.hub import check_repo, download, find_folder, upload
from modebridge.files.parts import Given, Parts, prefixed
from modebridge.files.rebuilding import describe, named, rebuildable, restore_body
from modebridge.files.storable import Storable
from modebridge.files.stored_folder import CARD, CONFIG, FORMAT, WEIGHTS, read_folder, write_folder

__all__ = [
    "CARD",
    "CONFIG",
    "FORMAT",
    "WEIGHTS",
    "Card",
    "Given",
    "Metric",
    "Parts",
    "Storable",
    "check_repo",
    "describe",
    "describe_net",
    "download",
    "find_folder",
    "full_name",
    "library_factory",
    "named",
    "prefixed",
    "read_folder",
    "rebuildable",
    "restore_body",
    "restore_net",
    "upload",
    "write_folder",
]
