"""Objects as folders of safetensors and JSON: written atomically, read without running code, shared on the hub."""

from modebridge.storage.architectures import build_net, describe_net, full_name, library_factory
from modebridge.storage.card import Card, Metric
from modebridge.storage.hub import check_repo, download, find_folder, upload
from modebridge.storage.parts import Given, Parts, prefixed
from modebridge.storage.rebuilding import describe, fill, named, rebuild, rebuildable
from modebridge.storage.storable import Storable
from modebridge.storage.stored_folder import CARD, CONFIG, FORMAT, WEIGHTS, read_folder, write_folder

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
    "build_net",
    "check_repo",
    "describe",
    "describe_net",
    "download",
    "fill",
    "find_folder",
    "full_name",
    "library_factory",
    "named",
    "prefixed",
    "read_folder",
    "rebuild",
    "rebuildable",
    "upload",
    "write_folder",
]
