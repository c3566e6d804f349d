"""What every object that can be stored has: save, and its like on the hub."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn

from modebridge.errors import ModebridgeError, first_line
from modebridge.storage.card import Card
from modebridge.storage.hub import check_repo, find_folder, upload
from modebridge.storage.parts import Given, Parts
from modebridge.storage.stored_folder import Place, local, read_folder, write_folder

__all__ = ["Storable"]


class Storable:
    """A subclass says what it consists of (`to_parts`) and how it is put together again (`from_parts`).

    Files hold data only: tensors, numbers and text. Loading never runs code of a file.
    """

    stored_as: ClassVar[str]
    """The name of the class in files."""

    def to_parts(self) -> Parts:
        """All of it, as data and tensors."""
        raise NotImplementedError

    @classmethod
    def from_parts(cls, parts: Parts, given: Given) -> Self:
        """The object again."""
        raise NotImplementedError

    def save(self, path: Place, **how: Any) -> None:
        """Write it as a folder of `config.json` and `model.safetensors`, which `modebridge.load` reads.

        The folder appears whole or not at all, and an earlier object in it is replaced. Tensors come back to the last
        bit, on the CPU.

        Args:
            path: the folder.
            how: of a `BridgedEnsemble` only, `net="timm:MODEL(option=value, ...)"` or `"torchvision:MODEL(...)"`: how
                its network is built, where that is not found out. The paper's networks, and those of timm with the
                usual options, need none. The module of any other network is given when loading.
        """
        write_folder(path, self._parts(how))

    def save_pretrained(self, folder: Place, *, card: Card | None = None, place: str = "", **how: Any) -> Path:
        """The same with README.md, a model card in the form of the Hugging Face hub.

        Args:
            folder: to be written.
            card: scores, data and licence, which the object does not know.
            place: its future name on the hub, for the card; that of the folder by default.
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
        """Upload what `save_pretrained` writes to the Hugging Face hub; gives the address.

        Args:
            repo: "OWNER/NAME"; created where there is none.
            card: see `save_pretrained`.
            private: of a repository that is created; None for the owner's default.
            token: of the hub; None for the one of `hf auth login` or HF_TOKEN.
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
        """`modebridge.load` for one class; the arguments are those of that function."""
        folder = find_folder(place, revision)
        parts = read_folder(folder)
        if parts.kind != cls.stored_as:
            raise ModebridgeError(
                f"Expected '{place}' to hold a {cls.__name__}, but it holds a stored {parts.kind}; use modebridge.load."
            )
        return cls.restored(parts, Given(net, list(bodies)), folder)

    @classmethod
    def restored(cls, parts: Parts, given: Given, folder: Path) -> Self:
        """The object of some parts; what is wrong with them becomes one sentence.

        Args:
            parts: from a file, so anything can be wrong with them.
            given: what the user gives.
            folder: where they come from.
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
                f"Expected bodies only for bridges whose body is a module of your own, but got {len(given.bodies)} too "
                "many; leave them out."
            )
        return restored

    def _parts(self, how: dict[str, Any]) -> Parts:
        if "stored_as" not in vars(type(self)):
            raise ModebridgeError(
                f"Expected an object of a class that modebridge can load, but got {type(self).__name__}, a class of "
                "your own; save the modes it is made of instead."
            )
        return self.to_parts(**how)
