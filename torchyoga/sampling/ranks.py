"""torch.distributed -> which of how many ranks this process is, and what the others report.

A loader asks for its rank when an iteration begins, not when it is made: people make loaders before they
initialise `torch.distributed`, and then all ranks would see all rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from ..errors import StateError, YogaError
from ..order.contract import Saved
from ..process.messages import warn_user
from .trainers import accelerate_mesh, is_sharded_by_caller

Group: TypeAlias = DeviceMesh | ProcessGroup

_MESSAGE_BYTES = 4096
_MOST_TEXT = 600  # characters of an error, which may each take six bytes


class Ranks:
    """Which rows this process takes: rank r of W.

    Args:
        num_replicas, rank: W and r; None for both to follow torch.distributed, whenever it is initialised.
        group: the ranks among which rows are divided, where others see the same rows: a DeviceMesh of one or
            more dimensions, such as `mesh["dp"]`, or a ProcessGroup.

    Attributes:
        follows: True if torch.distributed is asked for each iteration.
    """

    def __init__(self, num_replicas: int | None, rank: int | None, group: Group | None) -> None:
        if (num_replicas is None) != (rank is None):
            raise ValueError(f"give both num_replicas and rank, or neither; found {num_replicas} and {rank}")
        if group is not None and rank is not None:
            raise ValueError("give num_replicas and rank, or group, but not both")
        self.follows = group is None and rank is None
        self._given = (1, 0) if num_replicas is None or rank is None else (num_replicas, rank)
        if group is not None:
            self._given = _in_group(group)
        self._has_warned = False

    @property
    def is_alone(self) -> bool:
        """True if no other process can have the same rank."""
        return self.follows and _in_accelerators_mesh() is None

    def now(self) -> tuple[int, int]:
        """(W, r)."""
        if is_sharded_by_caller():
            if self._given[0] > 1:
                raise ValueError(
                    f"Accelerate deals the batches of this loader to its processes, but the sampler is rank "
                    f"{self._given[1]} of {self._given[0]} already, so most rows would be lost; leave out "
                    "num_replicas and rank, or use torchyoga.DataLoader, which Accelerate leaves as it is"
                )
            return 1, 0
        if not self.follows:
            return self._given
        if not _is_begun():
            return 1, 0
        return _in_accelerators_mesh() or (dist.get_world_size(), dist.get_rank())

    def check_alone(self) -> None:
        """Warns, once, if there are other processes but nothing says which rank this is."""
        processes = os.environ.get("WORLD_SIZE", "1")
        if not self.follows or self._has_warned or processes == "1" or self.now() != (1, 0):
            return
        if not _is_begun():
            self._has_warned = True
            warn_user(
                f"WORLD_SIZE is {processes}, but torch.distributed is not initialised, so this process takes "
                "all rows; call init_process_group before the first batch, or give num_replicas and rank"
            )


def is_one_of_several() -> bool:
    """True in a job of several processes, whatever ranks they were given."""
    if _is_begun():
        return dist.get_world_size() > 1
    return os.environ.get("WORLD_SIZE", "1") not in ("", "1")


def _is_begun() -> bool:
    return dist.is_available() and dist.is_initialized()


def _in_group(group: Group) -> tuple[int, int]:
    """The size of a DeviceMesh or ProcessGroup, and this process's number in it."""
    if isinstance(group, DeviceMesh):
        found = _in_mesh(group.mesh.shape, group.get_coordinate())
    else:
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        found = None if rank < 0 else (size, rank)
    if found is None:
        raise ValueError(
            f"this process is not in the group {group}; give the group of its own data-parallel ranks"
        )
    return found


def _in_accelerators_mesh() -> tuple[int, int] | None:
    """`_in_group` for the data-parallel dimensions of Accelerate's mesh, if it has others, too."""
    mesh = accelerate_mesh()
    if not isinstance(mesh, DeviceMesh):
        return None
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    is_data = [name.startswith("dp") for name in mesh.mesh_dim_names or ()]
    if all(is_data):
        return None
    return _in_mesh(
        [extent for extent, wanted in zip(mesh.mesh.shape, is_data, strict=True) if wanted],
        [at for at, wanted in zip(coordinate, is_data, strict=True) if wanted],
    )


def _in_mesh(shape: Sequence[int], coordinate: Sequence[int] | None) -> tuple[int, int] | None:
    if coordinate is None:
        return None
    size, rank = 1, 0
    for extent, at in zip(shape, coordinate, strict=True):
        size, rank = size * extent, rank * extent + at
    return size, rank


def gathered(message: Saved, group: ProcessGroup | None = None, most: int = _MESSAGE_BYTES) -> list[Saved]:
    """The message of each process of a group (all, by default), by one collective.

    Raises:
        StateError: a message has more than `most` bytes as JSON.
    """
    if not _is_begun() or dist.get_world_size(group) == 1:
        return [dict(message)]
    data = json.dumps(message).encode()
    if len(data) > most:
        data = b"0"
    device = torch.device("cpu")
    if "cpu:" not in dist.get_backend_config(group):
        device = torch.device("cuda", torch.cuda.current_device())
    table = torch.zeros((dist.get_world_size(group), most), dtype=torch.uint8, device=device)
    table[dist.get_rank(group), : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    dist.all_reduce(table, group=group)  # the others left zeros in its place
    found = [json.loads(bytes(row).rstrip(b"\0")) for row in table.cpu().numpy()]
    if 0 in found:
        raise StateError(f"rank {found.index(0)}'s message is larger than {most} bytes")
    return found


class Processes:
    """All ranks of torch.distributed, or this process alone.

    They talk over gloo, in a group of their own: a message by NCCL would wait for the device, and one in the
    group of the program would meet those of its threads, such as torch's asynchronous saves.
    """

    def __init__(self) -> None:
        self._group: Any = None

    @property
    def size(self) -> int:
        """How many processes there are."""
        return dist.get_world_size() if _is_begun() else 1

    @property
    def rank(self) -> int:
        """The number of this process."""
        return dist.get_rank() if _is_begun() else 0

    def gathered(self, message: Saved, most: int = _MESSAGE_BYTES) -> list[Saved]:
        """The message of each rank, of at most so many bytes as JSON; all of them call this."""
        return gathered(message, self._gloo(), most)

    @staticmethod
    def text_of(error: Exception | None) -> str | None:
        """An error as a message takes it; None for none."""
        return None if error is None else f"{type(error).__name__}: {error}"[:_MOST_TEXT]

    def checked(self, what: str, message: Saved, error: Exception | None) -> list[Saved]:
        """As `gathered`; if one of them has an error, all raise: that one its own, the others a YogaError."""
        answers = self.gathered({**message, "error": self.text_of(error)})
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
        found = torch.tensor([number], dtype=torch.int64)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._gloo())
        return int(found)

    def _gloo(self) -> Any:
        if self._group is None and self.size > 1:
            self._group = dist.new_group(backend="gloo")
        return self._group


def same_by_rank(receipts: Sequence[Saved]) -> list[Saved]:
    """One receipt of each rank; StateError if processes of the same rank say different things."""
    found: dict[int, Saved] = {}
    for process, receipt in enumerate(receipts):
        other = found.setdefault(receipt["rank"], receipt)
        if other != receipt:
            raise StateError(
                f"process {process} and another are both rank {receipt['rank']}, but have not delivered the "
                f"same: one is at {_standing(receipt)}, the other at {_standing(other)}"
            )
    return list(found.values())


def _standing(message: Saved) -> str:
    return f"epoch {message['epoch']}, position {message['position']}"
