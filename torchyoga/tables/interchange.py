"""Tables of other libraries -> DataRefs, by no name but that of their class, and DataRefs -> such tables.

No library is loaded before it is needed: a table that exists has loaded its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..reading.dataref import DataRef

if TYPE_CHECKING:
    import datasets
    import pandas
    import polars
    import pyarrow

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


def to_arrow(ref: DataRef) -> pyarrow.Table:
    """See `DataRef.to_arrow`."""
    _need("pyarrow", "arrow", "to_arrow")
    from .written import table_of

    return table_of(ref)


def to_pandas(ref: DataRef) -> pandas.DataFrame:
    """See `DataRef.to_pandas`."""
    _need("pandas", "", "to_pandas")
    table = to_arrow(ref)
    from .arrow_ref import frame_of

    return frame_of(table)


def to_polars(ref: DataRef) -> polars.DataFrame:
    """See `DataRef.to_polars`."""
    _need("polars", "", "to_polars")
    table = to_arrow(ref)
    from .arrow_ref import polars_frame_of

    found: polars.DataFrame = polars_frame_of(table)
    return found


def to_huggingface(ref: DataRef) -> datasets.Dataset:
    """See `DataRef.to_huggingface`."""
    _need("datasets", "huggingface", "to_huggingface")
    from .to_huggingface import dataset_of

    return dataset_of(ref)


def to_parquet(ref: DataRef, path: str | os.PathLike[str], group_bytes: int) -> None:
    """See `DataRef.to_parquet`."""
    _need("pyarrow", "arrow", "to_parquet")
    from .written import write_parquet

    write_parquet(ref, path, group_bytes)


def _need(package: str, extra: str, asked: str) -> None:
    """Raises ImportError unless a package is installed."""
    try:
        __import__(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        hint = f"'torchyoga[{extra}]'" if extra else package
        raise ImportError(f"{asked}() needs {package}, which is not installed; pip install {hint}") from error
