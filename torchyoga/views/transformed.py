"""The rows of another DataRef, each changed by functions; and how functions of users are named."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from multiprocessing.context import get_spawning_popen

from ..errors import SchemaError
from ..process.digests import hexdigest
from ..process.exceptions import note_row
from ..process.seeding import seeder
from ..process.stages import Stage, timed
from ..reading.contract import title_of
from ..reading.dataref import DataRef
from ..reading.instead import advised
from ..rows.block import exact_rows
from ..rows.schema import Schema
from ..rows.types import Ints, Json, Row, RowT, Seeds
from .over import ChangedRows


def name_of(function: Callable[..., object]) -> str:
    """The name of a function."""
    inner = getattr(function, "func", function)  # of a functools.partial
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)


def check_can_be_sent(function: Callable[..., object]) -> None:
    """Raises TypeError for a function that has no name of its own, if a process is being spawned now.

    Such a process finds functions by their names; other ways to pickle may take these functions, too.
    """
    name = name_of(function)
    if "<" in name and get_spawning_popen() is not None:  # <lambda>, <locals>
        raise TypeError(
            f"{name} cannot be sent to a process that is started by 'spawn' or 'forkserver', because nothing "
            "can be imported under that name; define the function at the top level of a module, or start "
            "the workers with multiprocessing_context='fork'"
        )


@advised
def map(ref: DataRef[RowT], function: Callable[[RowT], Row], schema: Schema | None = None) -> DataRef:
    """Each row after a function, whenever it is read: a transform, or an augmentation.

    A loader seeds `random`, NumPy and torch for each row from (seed, epoch, row), as it does for any
    dataset that is not cached: the result is the same for any number of workers and ranks, and after a
    resume. `seed_rows=False` saves these 10 us a row where nothing is random.

    Args:
        function: takes a row and returns another. Worker processes that are spawned need one that can be
            pickled: defined in a module, not a lambda.
        schema: what a changed row looks like, `Schema.of(row)`, so that its columns can be named; without
            it `columns`, `where` and such must come before `map`.

    Example:
        >>> ref = yoga.from_arrays({"x": np.arange(3), "y": np.arange(3)})
        >>> [int(row["x"]) for row in ref.map(lambda row: {**row, "x": row["x"] * 10})]
        [0, 10, 20]
    """
    if not callable(function):
        raise TypeError(f"map takes a function of a row, found {function!r:.80}")
    if type(ref) is TransformedRef:  # so that a row is seeded once
        return TransformedRef(ref.whole, (*ref.functions, function), schema)
    return TransformedRef(ref, (function,), schema)


class TransformedRef(ChangedRows):
    """The rows of another DataRef after some functions, one row at a time: what `ref.map(function)` is.

    Args:
        whole: the other DataRef.
        functions: each takes a row and returns one, the first one a row of `whole`.
        schema: what a changed row looks like, if that is known.
    """

    def __init__(
        self, whole: DataRef, functions: Sequence[Callable[[Row], Row]], schema: Schema | None = None
    ) -> None:
        super().__init__(whole, functions, schema)
        self.is_thread_safe = False  # the functions may not be
        self.functions = tuple(functions)
        self._schema = schema

    def __getstate__(self) -> Json:
        for function in self.functions:
            check_can_be_sent(function)
        return super().__getstate__()

    @property
    def _is_random(self) -> bool:
        """True: the functions may draw random numbers."""
        return True

    _most_batches = 1

    def _taken(self, rows: Ints, seeds: Seeds | None) -> Sequence[Row]:
        """The rows of these numbers; with seeds, `random`, NumPy and torch are seeded before each."""
        given = exact_rows(self._given(rows, seeds))
        with timed(Stage.TRANSFORM):
            found: list[Row] = []
            try:
                if seeds is None:
                    found.extend(builtins.map(self._changed, given))
                    return found
                seed_all = seeder()
                for row, seed in zip(given, seeds.tolist(), strict=True):
                    seed_all(seed)
                    found.append(self._changed(row))
            except Exception as error:
                note_row(error, int(rows[len(found)]), title_of(self))
                raise
        return found

    def _changed(self, row: Row) -> Row:
        for function in self.functions:
            changed = function(row)
            if changed is None and row is not None:
                raise SchemaError(
                    f"map({name_of(function)}) returned None for the row {row!r:.200}; return the row, also "
                    "where the function changes it in place, and leave rows out by "
                    "ref.where(column, condition)"
                )
            row = changed
        return row

    @property
    def schema(self) -> Schema | None:
        """How a changed row looks, if that was said."""
        return self._schema

    def _pinned(self, whole: str) -> str:
        return hexdigest(f"{whole} map {' '.join(builtins.map(name_of, self.functions))}")

    def _title(self) -> str:
        return f"{super()._title()} after {', '.join(builtins.map(name_of, self.functions))}"
