"""Tables of other libraries -> DataRefs, without a call that names the library.

The library is known by the modules in which the data's class was made, so it is loaded already.
"""

from __future__ import annotations

from ..reading.dataref import DataRef

_TABLES = {
    "pyarrow": ("Table", "RecordBatch", "RecordBatchReader"),
    "pandas": ("DataFrame",),
    "polars": ("DataFrame", "LazyFrame"),
    "datasets": ("Dataset", "DatasetDict"),
}


def recognised(data: object) -> DataRef | None:
    """A table, a data frame or a `datasets.Dataset` as a DataRef; None for anything else.

    Also None for a dataset with a transform, which gives its rows itself.

    Raises:
        TypeError: it is not a table yet: a LazyFrame, or several datasets in a DatasetDict.
        ImportError: pyarrow is not installed.

    Example:
        >>> import pandas as pd
        >>> len(recognised(pd.DataFrame({"x": [1, 2]}))), recognised([1, 2])
        (2, None)
    """
    if isinstance(data, DataRef):
        return None
    wanted = [known for cls in type(data).__mro__ if (known := _known(cls)) is not None]
    if not wanted:
        return None
    room, name = wanted[0]
    if name == "DatasetDict":
        raise TypeError(f"a DatasetDict holds several datasets; pass one of its splits: {sorted(data)}")  # type: ignore[call-overload]
    try:
        return _made(room, data)
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ImportError(
            f"a {room} {name} is read with pyarrow, which is not installed; pip install 'torchyoga[arrow]'"
        ) from error


def is_table(data: object) -> bool:
    """True for an object of a class that `recognised` knows, whether it has rows yet or not.

    Example:
        >>> import pandas as pd
        >>> is_table(pd.DataFrame({"x": [1, 2]})), is_table([1, 2])
        (True, False)
    """
    return any(_known(cls) is not None for cls in type(data).__mro__)


def _known(cls: type) -> tuple[str, str] | None:
    """The library and the name of a class that is a table; None for any other class."""
    room, name = str(cls.__module__).partition(".")[0], cls.__name__
    # People have modules of their own that are called datasets.
    if room == "datasets" and cls.__module__ not in ("datasets.arrow_dataset", "datasets.dataset_dict"):
        return None
    return (room, name) if name in _TABLES.get(room, ()) else None


def _made(room: str, data: object) -> DataRef | None:
    if room == "datasets":
        from .huggingface import HuggingFaceRef, from_huggingface

        made = from_huggingface(data)
        return None if isinstance(made, HuggingFaceRef) else made
    from .arrow_ref import from_arrow

    return from_arrow(data)
