"""Base class of objects that can be saved and shared on the hub."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn

from modebridge.errors import ModebridgeError, first_line
from modebridge.files.card import Card
from modebridge.files.hub import check_repo, find_folder, upload
from modebridge.files.parts import Given, Parts
from modebridge.files.stored_folder import Place, local, read_folder, write_folder

__all__ = ["Storable"]


class Storable:
    """Base class with `save`, `push_to_hub` and `from_pretrained`; subclasses define `to_parts` and `from_parts`.

    Files hold only data: tensors, numbers and text. Loading never runs code from a file.
    """

    stored_as: ClassVar[str]
    """Name of the class in files."""

    def to_parts(self) -> Parts:
        """Split the object into plain data and tensors."""
        raise NotImplementedError

    @classmethod
    def from_parts(cls, parts: Parts, given: Given) -> Self:
        """Rebuild the object."""
        raise NotImplementedError

    def save(self, path: Place, **how: Any) -> None:
        """Write a folder with `config.json` and `model.safetensors`, which `modebridge.load` reads.

        The folder is written completely or not at all; an earlier object in it is replaced. Tensors are restored bit
        for bit, on the CPU.

        Args:
            path: folder to write.
            how: for a `Ensemble` only: `net="timm:MODEL(option=value, ...)"` or `"torchvision:MODEL(...)"`
                tells how its network is built. It is detected for the paper's networks and those of timm with the
                usual options. For any other network, pass the module when loading.
        """
        write_folder(path, self._parts(how))

    def save_pretrained(self, folder: Place, *, card: Card | None = None, place: str = "", **how: Any) -> Path:
        """Like `save`, with README.md, a model card for the Hugging Face Hub.

        Args:
            folder: folder to write.
            card: scores, data and license, which the object does not have.
            place: future name on the hub, for the card; the name of the folder by default.
            how: see `save`.
        """
        parts = self._parts(how)
        count = sum(tensor.numel() for tensor in parts.tensors.values())
        text = (card or Card()).text(
            place or local(folder).resolve().name,
            parts.kind,
            f"`{self!r}`\n\n{count:,} numbers in {len(parts.tensors)} tensors.",
            needs_net=parts.config.get("net", ...) is None,
        )
        return write_folder(folder, parts, text)

    def push_to_hub(
        self,
        repo: str,
        *,
        card: Card | None = None,
        private: bool | None = None,
        token: str | None = None,
        **how: Any,
    ) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face Hub, and return its address.

        Args:
            repo: "OWNER/NAME"; created if it does not exist.
            card: see `save_pretrained`.
            private: visibility of a new repository; None for the owner's default.
            token: access token of the hub; None for the one of `hf auth login` or HF_TOKEN.
            how: see `save`.
        """
        check_repo(repo)
        with tempfile.TemporaryDirectory() as scratch:
            folder = self.save_pretrained(Path(scratch) / "folder", card=card, place=repo, **how)
            return upload(folder, repo, private=private, token=token)

    @classmethod
    def from_pretrained(
        cls,
        place: Place,
        *,
        revision: str | None = None,
        net: nn.Module | None = None,
        bodies: Sequence[nn.Module] = (),
    ) -> Self:
        """`modebridge.load`, with a check that the object is of this class; same arguments."""
        given = Given.checked(net, bodies)
        folder = find_folder(place, revision)
        parts = read_folder(folder)
        if parts.kind != cls.stored_as:
            raise ModebridgeError(
                f"Expected '{place}' to hold a {cls.__name__}, but it holds a stored {parts.kind}; use modebridge.load."
            )
        return cls.restored(parts, given, folder)

    @classmethod
    def restored(cls, parts: Parts, given: Given, folder: Path) -> Self:
        """Rebuild the object; invalid parts raise a `ModebridgeError`.

        Args:
            parts: parts from a file, which may be invalid in any way.
            given: modules passed by the user.
            folder: folder of the file.
        """
        try:
            restored = cls.from_parts(parts, given)
        except ModebridgeError:
            raise
        except Exception as error:
            raise ModebridgeError(
                f"Expected '{folder}' to describe a {cls.__name__}, but got {type(error).__name__}: "
                f"'{first_line(error)}'; save or download it again."
            ) from error
        if given.bodies:
            raise ModebridgeError(
                f"Expected bodies only for bridges with a custom body, but got {len(given.bodies)} too "
                "many; leave them out."
            )
        return restored

    def _parts(self, how: dict[str, Any]) -> Parts:
        if "stored_as" not in vars(type(self)):
            raise ModebridgeError(
                f"Expected an object of a class that modebridge can load, but got {type(self).__name__}, a "
                "custom class; save its modes instead."
            )
        return self.to_parts(**how)
