"""Any batch that torch's loader can send arrives as from it, and stays the same while more are drawn."""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import types
import warnings
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pytest
import torch
from own import Mapped
from torch.nn.utils.rnn import pack_sequence

import torchyoga as yoga
from torchyoga.loading.shared_memory import Ring

T = TypeVar("T")
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")


class Pair(NamedTuple):
    one: Any
    other: Any


class Triple(NamedTuple, Generic[T]):
    one: T
    two: T
    three: T


class Named(collections.namedtuple("Named", "x y")):
    """A class with an attribute in addition to its fields."""


class Counted(collections.namedtuple("Counted", "x count")):
    """A class that is not made from its fields."""

    __slots__ = ()

    def __new__(cls, x: torch.Tensor, count: int | None = None) -> Counted:
        return super().__new__(cls, x, len(x) if count is None else count)


class Reborn(collections.namedtuple("Reborn", "x")):
    """A class that is pickled by something else than its fields."""

    __slots__ = ()

    def __getnewargs__(self) -> tuple[Any]:
        return (self.x + 1,)


class Tensor(torch.Tensor):
    pass


class Bag(list[Any]):
    pass


class Book(dict[str, Any]):
    pass


class Shelf(tuple[Any, ...]):
    pass


@dataclasses.dataclass
class Example:
    x: Any
    name: str


class Batch:
    """A batch of the user's own, as torch's docs show for pin_memory."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self.y = [x, x.sum()]

    def pin_memory(self) -> Batch:
        self.x = self.x.pin_memory()
        return self


def kinds(number: int) -> dict[str, Any]:
    """Everything that torch's loader sends unchanged, with values that depend on `number`."""
    x = torch.arange(12.0).reshape(3, 4) + number
    parts, ragged = [x[:2], x], [x[0], x[1, :2]]
    part, whole = [x.clone()], torch.arange(20) + number
    attributed = Named(x + 2, 3)
    attributed.note = "kept"  # type: ignore[attr-defined]
    deep = functools.reduce(lambda inner, level: [inner] if level % 2 else {"in": inner}, range(80), x)
    return {
        "nested, strided": torch.nested.nested_tensor(parts),
        "nested, jagged": torch.nested.nested_tensor(parts, layout=torch.jagged),
        "sparse": [x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc(), torch.stack([x] * 4).to_sparse(1)],
        "sparse blocks": (x[:2] + 1).to_sparse_bsr((1, 2)),
        "requires grad": [x.clone().requires_grad_(), torch.nn.Parameter(x), torch.nn.Buffer(x)],
        "view": whole[3:9],
        "expanded": x[:1].expand(5, 4),
        "strides": [
            x.t(),
            x[:, ::2],
            whole[::3],
            x.reshape(1, 3, 2, 2).contiguous(memory_format=torch.channels_last),
        ],
        "empty": [
            torch.ones(0),
            torch.ones(2, 0, 3, dtype=torch.bool),
            torch.ones(0, 4).t(),
            np.ones((0, 3)),
        ],
        "scalar": [torch.tensor(number), torch.tensor(number + 0.5), np.array(number), np.float32(number)],
        "dtypes": [
            (x % 8).to(dtype)
            for dtype in (
                *(torch.bool, torch.uint8, torch.int16, torch.uint16, torch.uint64, torch.float16),
                *(torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
                *(torch.complex32, torch.complex64, torch.complex128),
            )
        ],
        "bits": [torch.full((4,), number % 256, dtype=torch.uint8).view(torch.uint4)],
        "subclass": x.as_subclass(Tensor),
        "own": Batch(x),
        "dataclass": Example(x, "a"),
        "namespace": types.SimpleNamespace(x=x),
        "mappings": [collections.OrderedDict(x=x), collections.defaultdict(int, x=1), Book(x=x)],
        "other mappings": [collections.UserDict(x=x), types.MappingProxyType({"x": 1}).copy()],
        "sequences": [Bag([x, 1]), Shelf([x, 2]), collections.deque([x, 3]), range(number), {1, number}],
        "namedtuples": [
            Pair(x, np.arange(3)),
            Triple(x, x, x),
            attributed,
            Counted(x),
            Reborn(x + 3),
            x.max(0),
        ],
        "packed sequence": pack_sequence(ragged),
        "values": ["text", b"bytes", None, number, 0.5, True, 1 + 2j, torch.float32, torch.Size([2, 3])],
        "arrays": [
            np.arange(6).reshape(2, 3) + number,
            np.asfortranarray(np.arange(6).reshape(2, 3)) + number,
            np.arange(number, number + 9)[::2],
            np.arange(3, dtype=">i4") + number,
            np.array([(number, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
            np.array([number, "a", None], object),
            np.array(["a", str(number)]),
            np.array(["2020-01-01"], "M8[D]") + number,
            np.matrix([[number, 2]]),
            np.ma.masked_array([number, 2], [True, False]),
            np.ones(3, np.longdouble) * number,
        ],
        "same twice": [x, x, {"again": x}, part, part],
        "overlapping": [whole[:12], whole[8:], whole.view(4, 5)[:, 1:]],
        "long lists": [
            [b"x" * 50_000, b"", bytes([number % 256]) * 40_000, b"y"],
            ("é", "\ud800", "", str(number)),
            [("in", b"z"), ["short", "list"], [b"no", "text", b"!", 1]],
        ],
        "lists of tensors": [
            [x[:count] + 1 for count in range(1, 4)] * 2,
            tuple(torch.full((count, 2), number) for count in range(1, 9)),
            [np.full(count, number, np.int16) for count in range(1, 9)],
            [torch.arange(3.0), torch.arange(3), torch.arange(3.0) + 1, torch.zeros(0), torch.ones(2)],
        ],
        "one beside another": list(torch.arange(number, number + 9).split(3)),
        "language model": (x[:, :-1], x[:, 1:]),
        "deep": deep,
        "jagged": yoga.jagged([{"x": np.arange(2) + number}, {"x": np.arange(3)}]),
    }


def collate(rows: list[int]) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # much of this is experimental, or old
        return kinds(rows[0])


def same(one: Any, other: Any) -> bool:
    """True if two batches are equal in type, values, and everything else that users can see."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        alike = all(
            getattr(one, name) == getattr(other, name)
            for name in ("layout", "dtype", "requires_grad", "is_nested")
        )
        if not alike:
            return False
        if one.is_nested:
            return all(map(same, one.unbind(), other.unbind()))
        if one.layout != torch.strided:
            return one.shape == other.shape and same(one.to_dense(), other.to_dense())
        bits = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
        return (one.shape, one.stride()) == (other.shape, other.stride()) and torch.equal(*bits)
    if isinstance(one, np.ndarray):
        flags = one.flags.c_contiguous, one.flags.f_contiguous
        return (
            (one.dtype, one.shape, *flags)
            == (other.dtype, other.shape, other.flags.c_contiguous, other.flags.f_contiguous)
            and bool(np.all(np.asarray(one) == np.asarray(other)))
            and bool(np.all(np.ma.getmaskarray(one) == np.ma.getmaskarray(other)))
        )
    if isinstance(one, (dict, collections.UserDict)):
        return (
            list(one) == list(other)
            and all(same(one[key], other[key]) for key in one)
            and alike_beside(one, other)
        )
    if isinstance(one, (list, tuple, collections.deque)):
        return len(one) == len(other) and all(map(same, one, other)) and alike_beside(one, other)
    return alike_beside(one, other) if hasattr(one, "__dict__") else bool(one == other)


def alike_beside(one: Any, other: Any) -> bool:
    """True if their attributes are equal, too."""
    mine, others = [dict(getattr(found, "__dict__", {})) for found in (one, other)]
    return same(mine, others) if mine and others else mine == others


def check_aliases(batch: dict[str, Any]) -> None:
    """Checks that one object is still one, and that tensors which shared memory still do."""
    one, two, third, part, again = batch["same twice"]
    assert one is two is third["again"]
    assert part is again
    first, second, columns = batch["overlapping"]
    first[11] = -1
    assert second[3] == columns[2, 0] == -1


LENGTH = 46
SPAWNED = pytest.param("spawn", marks=pytest.mark.rest)
SETTINGS: dict[str, dict[str, Any]] = {
    "no workers": {},
    "fork": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "forkserver": {"num_workers": 1, "multiprocessing_context": "forkserver"},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "out of order": {"num_workers": 1, "in_order": False},
}


@pytest.mark.quick("no workers", "fork")
@pytest.mark.parametrize("setting", [*(name for name in SETTINGS if name != "spawn"), SPAWNED])
def test_all_kinds_arrive_as_from_torchs_loader_and_stay_unchanged(setting: str) -> None:
    collate([0])  # torch warns about some kinds when a process gets the first of them
    options: dict[str, Any] = {"batch_size": 1, "collate_fn": collate, **SETTINGS[setting]}
    plain = {**options, "multiprocessing_context": "fork"} if options.get("num_workers") else options
    models = iter(torch.utils.data.DataLoader(list(range(LENGTH)), **plain))
    expected = [next(models) for _ in range(3)]
    del models
    loader = yoga.DataLoader(list(range(LENGTH)), **options)
    for _ in range(2 if setting == "persistent" else 1):
        batches = iter(loader)
        found = [next(batches) for _ in range(3)]
        assert sum(1 for _ in batches) == LENGTH - 3
        for batch, model in zip(found, expected, strict=True):
            assert [name for name in model if not same(batch[name], model[name])] == []
    check_aliases(found[0])


def turned(rows: list[int]) -> list[torch.Tensor]:
    x = torch.arange(4.0) + rows[0]
    conjugate = torch.complex(x, x + 1).conj()
    return [conjugate, conjugate.imag, conjugate.imag[1:], conjugate.imag[:1], conjugate.reshape(2, 2).t()]


@pytest.mark.parametrize("slots", [True, False])
def test_conjugated_and_negated_tensors_arrive_with_their_values(
    slots: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's loader drops the bits for conjugated and negated, which changes the values."""
    if not slots:
        monkeypatch.delattr(os, "memfd_create", raising=False)
        assert Ring.made(2) is None
    loader = yoga.DataLoader(list(range(6)), 1, num_workers=2, collate_fn=turned)
    for number, batch in enumerate(loader):
        assert all(torch.equal(one, other) for one, other in zip(batch, turned([number]), strict=True))


def ordinary(index: int) -> Any:
    x = torch.arange(3.0) + index
    return {
        "mappings": [collections.OrderedDict(x=x), Book(x=x), collections.UserDict(x=x)],
        "sequences": [Bag([x]), (x, 1), Pair(x, "a"), collections.deque([x])],
        "values": [index, 0.5, True, "text", b"bytes", np.float32(index), np.int64(index), np.bool_(True)],
        "arrays": [np.arange(3) + index, np.array(index), np.ones((2, 0))],
        "tensors": [x, x.bfloat16(), x.to(torch.complex64), torch.tensor(index), x.to(torch.float8_e5m2)],
        "expanded": x.expand(2, 3),
        "one of a column": torch.stack([x, x])[:1, 1],  # of stride 3
    }


REFUSED: dict[str, Callable[[int], Any]] = {
    "nested": lambda index: torch.nested.nested_tensor([torch.ones(2)]),
    "sparse": lambda index: torch.eye(3).to_sparse(),
    "requires grad": lambda index: torch.ones(3, requires_grad=True),
    "dataclass": lambda index: Example(1, "a"),
    "none": lambda index: None,
    "objects": lambda index: np.array([None]),
    "lengths": lambda index: torch.ones(index),
}


def outcome(loader: Any) -> list[Any]:
    """Each batch; for an error its type, and the last line of its message."""
    batches, found = iter(loader), list[Any]()
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            return found
        except Exception as error:
            found.append((type(error), str(error).strip().splitlines()[-1].split(": ")[-1]))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # the first in a process
@pytest.mark.parametrize("workers", [0, 1])
def test_default_collate_keeps_types_and_refuses_as_in_torchs_loader(workers: int) -> None:
    for name, row in {"ordinary": ordinary, **REFUSED}.items():
        expected = outcome(torch.utils.data.DataLoader(Mapped(6, row), 2, num_workers=workers))
        found = outcome(yoga.DataLoader(Mapped(6, row), 2, num_workers=workers))
        assert len(found) == 3
        if workers:
            assert all(type(batch) is (dict if name == "ordinary" else tuple) for batch in found), found
        assert same(found, expected), name


def quantized(rows: list[int]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.arange(4.0) + rows[0], 0.1, 0, torch.quint8)


@pytest.mark.parametrize("workers", [0, 1])
def test_quantized_tensors_behave_as_in_torchs_loader(workers: int) -> None:
    """With workers torch loses their scale, and says so when it is needed."""
    for cls in (yoga.DataLoader, torch.utils.data.DataLoader):
        batches = cls(list(range(3)), batch_size=1, num_workers=workers, collate_fn=quantized)
        for number, batch in enumerate(batches):
            assert batch.int_repr().tolist() == quantized([number]).int_repr().tolist()
            if workers:
                with pytest.raises(RuntimeError, match="UnknownQuantizer"):
                    batch.dequantize()
            else:
                assert batch.dequantize().tolist() == [number, number + 1, number + 2, number + 3]


def itself(rows: list[int]) -> Any:
    batch: list[Any] = [torch.tensor(rows)]
    batch.append({"all": batch})
    return batch


def test_a_batch_that_contains_itself_arrives() -> None:
    for number, batch in enumerate(yoga.DataLoader(list(range(3)), 1, num_workers=1, collate_fn=itself)):
        assert batch[0].tolist() == [number]
        assert batch[1]["all"] is batch
