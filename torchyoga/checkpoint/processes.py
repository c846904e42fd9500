"""The processes of a job: what each of them says reaches all, and all agree."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..errors import YogaError
from ..order.contract import Saved
from ..sampling.ranks import gathered

_MOST_TEXT = 600  # characters of an error, which may each take six bytes


class Processes:
    """All ranks of torch.distributed, or this process alone.

    They talk over gloo, in a group of their own: a message by NCCL would wait for the device, and one in the
    group of the program would meet those of its threads, such as torch's asynchronous saves.
    """

    def __init__(self) -> None:
        self._group: Any = None
        self._is_known = False

    @property
    def size(self) -> int:
        """How many processes there are."""
        return dist.get_world_size() if _is_begun() else 1

    @property
    def rank(self) -> int:
        """The number of this process."""
        return dist.get_rank() if _is_begun() else 0

    def told(self, message: Saved, most: int = 4096) -> list[Saved]:
        """The message of each rank, of at most so many bytes as JSON; all of them call this."""
        return gathered(message, self._gloo(), most)

    @staticmethod
    def text_of(error: Exception | None) -> str | None:
        """An error as a message takes it; None for none."""
        return None if error is None else f"{type(error).__name__}: {error}"[:_MOST_TEXT]

    def checked(self, what: str, message: Saved, error: Exception | None) -> list[Saved]:
        """As `told`; if one of them has an error, all raise: that one its own, the others a YogaError."""
        answers = self.told({**message, "error": self.text_of(error)})
        if error is not None:
            raise error
        for rank, answer in enumerate(answers):
            if answer["error"] is not None:
                raise YogaError(f"{what}, because rank {rank} could not: {answer['error']}")
        return answers

    def most(self, number: int) -> int:
        """The largest number of all ranks."""
        if self.size == 1:
            return number
        found = torch.tensor([number])
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._gloo())
        return int(found)

    def _gloo(self) -> Any:
        if not self._is_known and self.size > 1:
            self._is_known = True
            self._group = dist.new_group(backend="gloo")
        return self._group


def _is_begun() -> bool:
    return dist.is_available() and dist.is_initialized()
