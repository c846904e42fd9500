"""The tables that a DataRef can become; their libraries are loaded when one is asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..reading.dataref import DataRef

if TYPE_CHECKING:
    import datasets
    import pandas
    import polars
    import pyarrow


def to_arrow(ref: DataRef) -> pyarrow.Table:
    """See `DataRef.to_arrow`."""
    _need("pyarrow", "arrow", "to_arrow")
    from .written import table_of

    return table_of(ref)


def to_pandas(ref: DataRef) -> pandas.DataFrame:
    """See `DataRef.to_pandas`."""
    _need("pandas", "", "to_pandas")
    table = to_arrow(ref)
    from .frames import frame_of

    return frame_of(table)


def to_polars(ref: DataRef) -> polars.DataFrame:
    """See `DataRef.to_polars`."""
    _need("polars", "", "to_polars")
    import polars

    table = to_arrow(ref)
    from .frames import polars_frame_of

    found = polars_frame_of(table)
    assert isinstance(found, polars.DataFrame)
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
