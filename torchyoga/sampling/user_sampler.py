"""A user's own sampler: what it draws from, where it stands, and the indices of an epoch as it draws them.

Note 12. A user's sampler is counted by the same cursor, in batches.
It counts as a single rank, with an order whose length is known once it is over, so peeks, late epochs,
batches out of order and states of earlier steps follow from the same arithmetic.

To Python, an interrupted generator has ended.
That would look like the end of the epoch. So whatever is raised while a sampler draws makes it begin again
and draw to the same place.
"""

from __future__ import annotations

import base64
import contextlib
import random
import re
import weakref
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from copy import deepcopy
from itertools import chain, count, islice
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeGuard, cast

import numpy as np
import torch
from torch.utils.data import (
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ..errors import StateError
from ..order.place import Place
from ..process.seeding import OwnGenerators
from ..rows.column import is_valid
from ..rows.types import Array, Index, Json

END = object()  # in place of a batch that an epoch does not have
_MOST_PARTS = 8  # samplers within samplers
_WITHIN = ("sampler", "batch_sampler", "_sampler")  # the attributes that hold them
_DRAWN_AT_ONCE = (WeightedRandomSampler, SubsetRandomSampler, RandomSampler)  # when their iteration begins
_SHUFFLED = ({int}, {str}, {np.int64}, {np.int32})  # the types of what is in such a list
_LISTS = (list, tuple, range, np.ndarray, torch.Tensor, SequentialSampler)
_Generator: TypeAlias = torch.Generator | np.random.Generator | np.random.RandomState | random.Random

_MOST_BYTES = 2**16  # of a generator's state
# What is raised where a state is damaged, or a generator does not take it.
STATE_ERRORS = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError, zlib.error)
_MOST_SHUFFLED = 2**14  # bytes of a list that is kept like a generator


class SamplerError(Exception):
    """An exception of a sampler. No batch failed: asked again, the iteration goes on where it stands."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Keys(NamedTuple):
    """The keys that a sampler has given for a batch, as the dataset is to get them."""

    whole: Index
    size: int


class Stateful(Protocol):
    """A sampler that says itself where it stands."""

    def state_dict(self) -> object:
        """Where it stands."""

    def load_state_dict(self, state: object, /) -> object:
        """Puts it back to there."""


class Start(NamedTuple):
    """The beginning of the drawing of an epoch.

    Attributes:
        generators: the states of the sampler's own, and of lists it has shuffled, by where they are.
        kept: what `state_dict` of the sampler, or of those in it, has returned.
    """

    epoch: int
    generators: Mapping[str, Json]
    kept: Mapping[str, object]


class UserSampler:
    """A sampler, or batch sampler, of which nothing is known but its attributes and what it gives.

    Args:
        sampler: gives indices, or batches of them if `is_batches`.
        batch_size: indices of a batch; None to hand out what the sampler gives.
        drop_last: leave out a shorter last batch.
        is_batches: True for a batch sampler.

    Attributes:
        draws: True if it may draw from what all code shares.
        is_single: True if what it gives is for single rows.

    Raises:
        TypeError: it cannot be iterated, or only once.
    """

    def __init__(
        self, sampler: Iterable[Index], batch_size: int | None, drop_last: bool, is_batches: bool
    ) -> None:
        kind = "batch_sampler" if is_batches else "sampler"
        if not (hasattr(sampler, "__iter__") or hasattr(sampler, "__getitem__")):
            raise TypeError(f"{kind} must give indices when it is iterated, found {sampler!r:.100}")
        if isinstance(sampler, Iterator) and type(sampler).__module__ in ("builtins", "itertools"):
            raise TypeError(
                f"{kind} is a {type(sampler).__name__}, which can be iterated only once, so no epoch could "
                "be drawn again; give a list, or an object whose __iter__ begins anew"
            )
        self.sampler = sampler
        self.batch_size = None if is_batches else batch_size
        self.drop_last = drop_last
        self.is_single = batch_size is None and not is_batches
        has_own = self.is_torchs and getattr(sampler, "generator", None) is not None
        self.draws = type(sampler) not in _LISTS and not has_own
        self.is_setting_epoch = False  # its `set_epoch` is being called
        self.epoch: int | None = None  # the one that its set_epoch got last
        self._lists_at_first = {name: value[:] for name, value in self._lists().items()}

    @property
    def name(self) -> str:
        """The sampler's name."""
        return type(self.sampler).__name__

    def num_steps(self) -> int:
        """Batches of an epoch, as it says.

        Raises:
            TypeError: it has no length.
        """
        number = len(cast(Sized, self.sampler))
        if self.batch_size is None:
            return number
        return number // self.batch_size if self.drop_last else -(-number // self.batch_size)

    @property
    def expected(self) -> int | None:
        """Batches of an epoch, as it says; None if it does not."""
        try:
            return int(self.num_steps())
        except (TypeError, ValueError, NotImplementedError, OverflowError):
            return None

    @property
    def size(self) -> int | None:
        """Indices of a batch, if that is known."""
        size = getattr(self.sampler, "batch_size", None) if self.batch_size is None else self.batch_size
        return size if type(size) is int and not self.is_single else None

    @property
    def is_torchs(self) -> bool:
        """True for a sampler of torch's that draws at random."""
        return type(self.sampler) in _DRAWN_AT_ONCE

    @property
    def is_drawn_at_once(self) -> bool:
        """True if all of an epoch is drawn when its first index is asked for."""
        # RandomSampler asks the user's generator whenever it needs more.
        return self.is_torchs and (type(self.sampler) is not RandomSampler or self.sampler.generator is None)

    @property
    def is_known_ahead(self) -> bool:
        """True if nothing that happens meanwhile can change what comes, so the sampler may be asked early."""
        return type(self.sampler) in _LISTS or self.is_drawn_at_once

    @property
    def is_dealt(self) -> bool:
        """True if the sampler says that it heeds ranks."""
        return any(
            "rank" in name or "replica" in name or "world" in name
            for _, part in self.parts()
            for name in getattr(part, "__dict__", {})
        )

    @property
    def is_stateful(self) -> bool:
        """True if it says itself where it stands."""
        return _is_stateful(self.sampler)

    def parts(self) -> Iterator[tuple[str, object]]:
        """The sampler and those in it, with the names by which they are reached."""
        found: deque[tuple[str, object]] = deque([("", self.sampler)])
        seen = {id(self.sampler)}
        while found:
            path, part = found.popleft()
            yield path, part
            for name, value in list(getattr(part, "__dict__", {}).items()):
                is_part = isinstance(value, Sampler) or (name == "dataset" and hasattr(value, "_sampler"))
                is_part = is_part or (name in _WITHIN and hasattr(value, "__iter__"))
                if (
                    is_part
                    and type(value) not in _LISTS
                    and id(value) not in seen
                    and len(seen) < _MOST_PARTS
                ):
                    seen.add(id(value))
                    found.append((f"{path}{name}.", value))

    def generators(self) -> dict[str, Json]:
        """The states of the generators that the sampler has, and of lists that it has shuffled, by name."""
        first = self._lists_at_first
        shuffled = {name: one for name, one in self._lists().items() if one != first.get(name, one)}
        return {name: written(one) for name, one in {**self._generators(), **shuffled}.items()}

    def _generators(self) -> dict[str, _Generator]:
        parts = self.parts()
        return {f"{path}{name}": one for path, part in parts for name, one in generators_of(part).items()}

    def _lists(self) -> dict[str, list[Any]]:
        """Short lists of ints or texts, which a sampler may shuffle in place, and then draws by."""
        return {
            f"{path}{name}": one
            for path, part in self.parts()
            for name, one in getattr(part, "__dict__", {}).items()
            if _is_kept(one)
        }

    def put_back(self, states: Mapping[str, Json], strict: bool = True) -> None:
        """Gives the generators these states.

        Raises:
            StateError: the sampler has other generators.
        """
        mine, lists = self._generators(), self._lists()
        if strict and set(mine) != set(states) - set(lists):
            raise StateError(
                f"the state has generators {sorted(states)}, but {self.name} has {sorted(mine)} here; make "
                "the sampler as it was, or pass strict=False to take the epoch and steps"
            )
        for name in set(lists) & set(self._lists_at_first):  # a state has those that were shuffled
            lists[name][:] = self._lists_at_first[name]
        owned = {**mine, **lists}
        for name in set(owned) & set(states):
            put_back(owned[name], states[name])

    def _parts_by_name(self) -> dict[str, object]:
        return {f"sampler.{path}".rstrip("."): part for path, part in self.parts()}

    def start_of(self, epoch: int) -> Start:
        """What an epoch begins with, if it begins now."""
        parts = {"sampler": self.sampler} if self.is_stateful else self._parts_by_name()
        kept = {name: deepcopy(part.state_dict()) for name, part in parts.items() if _is_stateful(part)}
        return Start(epoch, self.generators(), kept)

    def take(self, kept: Mapping[str, object]) -> None:
        """Puts the sampler back to where it said it stood.

        Raises:
            StateError: it has no such part.
        """
        parts = self._parts_by_name()
        for name, state in kept.items():
            part = parts.get(name)
            if not _is_stateful(part):
                raise StateError(
                    f"the state has a state of {name}, but {self.name} has no load_state_dict there; make "
                    "the sampler as it was"
                )
            part.load_state_dict(deepcopy(state))

    def tell(self, epoch: int) -> None:
        """Calls `set_epoch` of the sampler, and of those in it."""
        self.is_setting_epoch, self.epoch = True, epoch
        try:
            for _, part in self.parts():
                if has_epochs(part):
                    set_epoch = part.set_epoch
                    (set_epoch.own if type(set_epoch) is SetEpoch else set_epoch)(epoch)
        finally:
            self.is_setting_epoch = False

    def read(self, iterator: Iterator[Index]) -> Index:
        """The next indices of an iterator of the sampler.

        Raises:
            StopIteration: there is no more.
        """
        size = self.batch_size
        if size is None:
            return next(iterator)
        if iterator is self.sampler:  # `islice` would begin it again
            found: list[Index] = []
            with contextlib.suppress(StopIteration):
                while len(found) < size:
                    found.append(next(iterator))
        else:
            found = list(islice(iterator, size))
        if not found or (self.drop_last and len(found) < size):
            raise StopIteration
        return found


class Drawing:
    """The indices of one epoch, drawn batch by batch and kept until they are delivered.

    Args:
        foreign: the sampler.
        epoch: the epoch.
        start: what its drawing begins with; None for an epoch that was never drawn.
        shared: sets what all code shares to what the sampler has when the epoch begins.
    """

    def __init__(
        self, foreign: UserSampler, epoch: int, start: Start | None, shared: Callable[[], OwnGenerators]
    ) -> None:
        self._foreign = foreign
        self._shared = shared
        self._is_again = start is not None
        self.start = start or Start(epoch, {}, {})
        self.drawn = 0
        self.has_ended = False
        self.end: Start | None = None  # what the next epoch begins with
        self.expected: int | None = None  # batches of the epoch, as the sampler says
        self._batches: dict[int, Index] = {}  # drawn and still to be delivered
        self._sums = array("I")  # a checksum of all indices up to the end of each batch
        self._place = Place(epoch, 0)  # up to which they were delivered
        self._iterator: Iterator[Index] | None = None
        self._is_first = True  # nothing was drawn since it was opened
        self._may_be_over = False
        self._own: OwnGenerators | None = None

    def open(self) -> Start:
        """Makes the sampler's iterator, and returns what it begins with."""
        with self._apart(begins=True):
            self._open()
        return self.start

    def batch(self, number: int) -> Index:
        """The indices of the sampler for batch `number`; `END` if the epoch has no such batch."""
        if number < self.drawn and number not in self._batches:
            self._iterator = None
            self.has_ended = False
        while number not in self._batches and not self.has_ended:
            self._draw()
        return self._batches.get(number, END)

    @property
    def is_of_one_iterator(self) -> bool:
        """True if the sampler is its own iterator, so that it cannot have two."""
        return self._iterator is self._foreign.sampler

    def sum_of(self, count: int) -> int | None:
        """A checksum of the indices of the first batches; None if they are not drawn."""
        return self._sums[count - 1] if 0 < count <= len(self._sums) else None

    def forget(self, place: Place) -> None:
        """Batches that were delivered up to a place will not be asked for again."""
        self._place = place
        for number in [number for number in self._batches if not self._is_to_come(number)]:
            del self._batches[number]

    def tell(self) -> None:
        """Calls `set_epoch` of the sampler once more."""
        with self._apart():
            self._foreign.tell(self.start.epoch)

    def _is_to_come(self, number: int) -> bool:
        left = self._place.left
        return number >= self._place.position + sum(map(len, left)) or any(number in some for some in left)

    def _draw(self) -> None:
        with self._apart(begins=self._iterator is None):
            iterator = self._open() if self._iterator is None else self._iterator
            try:
                found = self._next_or_anew(iterator)
            except StopIteration:
                self.has_ended = True
                self.end = self._foreign.start_of(self.start.epoch + 1)
                return
            self._sums.append(zlib.crc32(_text_of(found), self._sums[-1] if self._sums else 0))
            if self._is_to_come(self.drawn):
                self._batches[self.drawn] = found
            self.drawn += 1
            self._is_first = False
        if self.drawn == self.expected:
            # So that the state after its last batch is of the next epoch. Asking for it raises the error.
            with contextlib.suppress(SamplerError):
                self._draw()

    def _next_or_anew(self, iterator: Iterator[Index]) -> Index:
        try:
            return self._foreign.read(iterator)
        except StopIteration:
            # A state of the end of an epoch makes some samplers give nothing, once, as torchdata's do.
            if not self._may_be_over or self.drawn:
                raise
        self._may_be_over = False
        self._iterator = iter(self._foreign.sampler)
        return self._foreign.read(self._iterator)

    def _open(self) -> Iterator[Index]:
        foreign, epoch = self._foreign, self.start.epoch
        self._may_be_over = self._is_again and bool(self.start.kept)
        if self._is_again:
            foreign.put_back(self.start.generators, strict=False)
            foreign.take(self.start.kept)
            foreign.tell(epoch)  # what was kept at an epoch's end may say that it is still that one
        else:
            generators = foreign.generators()
            foreign.tell(epoch)
            self.start = foreign.start_of(epoch)._replace(generators=generators)
            self._is_again = True
        self._iterator, self.drawn, self.has_ended = iter(foreign.sampler), 0, False
        self._sums = array("I")
        self.expected = foreign.expected
        return self._iterator

    @contextlib.contextmanager
    def _apart(self, begins: bool = False) -> Iterator[None]:
        """Lets the sampler draw meanwhile, with what all code shares set to what the sampler has."""
        if begins:
            self._own, self._is_first = self._shared() if self._foreign.draws else None, True
        own = self._own if self._is_first or not self._foreign.is_drawn_at_once else None
        try:
            with contextlib.nullcontext() if own is None else own.in_place():
                yield
        except BaseException as error:
            # It is not known where the iterator stands now, and a generator would be at its end: another
            # begins, and draws again.
            self._iterator = None
            if isinstance(error, Exception):
                raise SamplerError(error) from error
            raise

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_iterator": None, "_own": None, "_batches": {}}


def _text_of(batch: Index) -> bytes:
    text = repr(batch.tolist() if isinstance(batch, (np.ndarray, torch.Tensor)) else batch)
    return re.sub("0x[0-9a-f]+", "", text).encode()  # addresses differ from process to process


def numbers(place: Place) -> Iterator[int]:
    """The batches that come from a place on."""
    return chain(*place.left, count(place.position + sum(map(len, place.left))))


def as_keys(batch: Index) -> Keys:
    """A batch as it is, with its size."""
    if not hasattr(batch, "__len__"):
        batch = list(batch)
    return Keys(batch, len(batch))


def as_rows(batch: Index) -> Array:
    """A batch as numbers of rows; unchanged if it is something else, which a DataRef refuses."""
    found = batch.numpy() if isinstance(batch, torch.Tensor) else np.asarray(as_keys(batch).whole)
    if found.ndim == 1 and (found.dtype.kind in "iu" or not found.size):
        return found.astype(np.int64, copy=False)
    whole = list(batch)
    refused = np.empty(len(whole), object)
    for place, index in enumerate(whole):
        refused[place] = index
    return refused


def _is_kept(value: object) -> bool:
    if type(value) is not list or len(value) > _MOST_SHUFFLED // 8 or {*map(type, value)} not in _SHUFFLED:
        return False
    array = np.array(value)
    return array.dtype.kind in "iU" and array.nbytes <= _MOST_SHUFFLED and array.tolist() == value


def _is_stateful(part: object) -> TypeGuard[Stateful]:
    return callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None))


class HasEpochs(Protocol):
    """The objects that are to know which epoch it is."""

    def set_epoch(self, epoch: int, /) -> object:
        """Makes `epoch` the next one to begin."""


def has_epochs(part: object) -> TypeGuard[HasEpochs]:
    """True for what has a `set_epoch`."""
    return callable(getattr(part, "set_epoch", None))


class SetEpoch:
    """`set_epoch` of a sampler that others follow: theirs is called, too.

    Trainers and loops call that of the sampler which they know.
    """

    def __init__(self, own: Callable[[int], object]) -> None:
        self.own = own
        self.followers: weakref.WeakSet[HasEpochs] = weakref.WeakSet()

    def __call__(self, epoch: int) -> None:
        """Calls that of the sampler, and of those that follow it."""
        self.own(epoch)
        for follower in tuple(self.followers):
            follower.set_epoch(epoch)

    def __reduce__(self) -> tuple[type[SetEpoch], tuple[Callable[[int], object]]]:
        return SetEpoch, (self.own,)


def generators_of(owner: object) -> dict[str, _Generator]:
    """The generators that are attributes of an object, by name; those that all code shares are left out."""
    shared = (torch.default_generator, np.random.mtrand._rand, random.random.__self__)  # type: ignore[attr-defined]
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    return {
        name: value
        for name, value in getattr(owner, "__dict__", {}).items()
        if isinstance(value, kinds)
        and not isinstance(value, random.SystemRandom)
        and not any(value is one for one in shared)
    }


def written(generator: _Generator | list[Any]) -> Json:
    """The state of a generator, JSON-able: torch's takes 4 KB, Python's and a RandomState 3, others less."""
    if isinstance(generator, list):
        return {"list": _packed(np.array(generator))}
    if isinstance(generator, torch.Generator):
        return {"torch": state_as_json(generator.get_state().numpy())}
    if isinstance(generator, random.Random):
        return {"random": state_as_json(generator.getstate())}
    if isinstance(generator, np.random.RandomState):
        return {"numpy": state_as_json(generator.get_state(legacy=False))}
    return {"numpy": state_as_json(generator.bit_generator.state)}


def put_back(generator: _Generator | list[Any], found: Json) -> None:
    """Gives a generator the state that `written` returned.

    Raises:
        StateError: it is damaged, or of another kind of generator.
    """
    try:
        if isinstance(generator, list):
            generator[:] = map(type(generator[0]), _unpacked(found["list"]).tolist())
        elif isinstance(generator, torch.Generator):
            generator.set_state(torch.from_numpy(state_of(found["torch"])))
        elif isinstance(generator, random.Random):
            generator.setstate(state_of(found["random"]))
        elif isinstance(generator, np.random.RandomState):
            generator.set_state({**state_of(found["numpy"])})  # TypeError if it is not a dict
        else:
            generator.bit_generator.state = {**state_of(found["numpy"])}
    except STATE_ERRORS as error:
        kinds = sorted(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
        raise StateError(
            f"the state of a generator does not fit: it is of {kinds}, the sampler has a "
            f"{type(generator).__module__}.{type(generator).__name__} here; give the sampler the kind of "
            "generator that it was saved with"
        ) from error


def state_as_json(state: Any) -> Any:
    """A state of a generator of Python's or NumPy's, the words of torch's, or a dict of such, as JSON."""
    if isinstance(state, dict):
        return {name: state_as_json(one) for name, one in state.items()}
    if isinstance(state, tuple):  # of `random`
        version, words, gauss = state
        return [version, _packed(np.array(words, np.uint32)), gauss]
    if isinstance(state, np.ndarray):
        return _packed(state)
    return state.item() if isinstance(state, np.generic) else state


def state_of(found: Any) -> Any:
    """The state that `state_as_json` was given.

    Raises:
        Exception: one of `STATE_ERRORS`: it is damaged, or NumPy's generator would draw from memory beside
            its words.
    """
    if isinstance(found, list):
        version, words, gauss = found
        return version, tuple(_unpacked(words).tolist()), gauss
    if not isinstance(found, dict):
        return found
    if not 0 <= found.get("pos", 0) <= 624 or found.get("buffer_pos", 0) < 0:
        raise ValueError("a place beside the words of a generator, which NumPy would read")
    return _unpacked(found) if "base85" in found else {name: state_of(one) for name, one in found.items()}


def _packed(array: Array) -> dict[str, str]:
    return {
        "dtype": array.dtype.str,
        "base85": base64.b85encode(zlib.compress(array.tobytes())).decode("ascii"),
    }


def _unpacked(found: Mapping[str, str]) -> Array:
    data = zlib.decompressobj().decompress(base64.b85decode(found["base85"]), _MOST_BYTES)
    if not is_valid("ndarray", found["dtype"]):  # at some other texts NumPy ends the process
        raise ValueError(f"an array of {found['dtype']!r:.40}")
    return np.array(np.frombuffer(data, np.dtype(found["dtype"])))
