"""A call that other libraries know -> what to write here instead."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar, cast

__all__ = ["CALLS", "METHODS", "advised", "check_arguments"]

F = TypeVar("F", bound=Callable[..., Any])

_COLUMNS = "ref.columns(names), with the names to keep"
_COMPUTED = "ref.map_batches(function), which returns the columns"
_CONCAT = "yoga.concat([ref, other])"
_COLUMN = "np.asarray(ref[column])"
_LOADER = "yoga.DataLoader(ref, batch_size=32), which gives tensors"
_MAP = "ref.map(function)"
_SCHEMA = "ref.schema, which has the columns, and len(ref)"
_SHARD = "yoga.DataLoader(ref, num_replicas=n, rank=r), or ref[r::n]"
_STATS = "ref.stats(), or np.asarray(ref[column])"
_WHERE = "ref.where(column, condition)"

# Of Hugging Face, pandas, tf.data and torch; by the name of an attribute.
METHODS = {
    "add_column": "storage.add_columns(data, id), or ref.zip(other)",
    "append": "storage.append(data, id), or " + _CONCAT,
    "apply": _MAP,
    "as_numpy_iterator": "a loop over ref, whose rows hold NumPy's values",
    "assign": _COMPUTED,
    "astype": _COMPUTED,
    "batch": _LOADER,
    "cache": "storage.submit(ref, id, version)",
    "cast": _COMPUTED,
    "cast_column": _COMPUTED,
    "column_names": "ref.schema, which has the columns",
    "concat": _CONCAT,
    "concatenate": _CONCAT,
    "copy": "ref itself: its rows never change",
    "count": "len(ref)",
    "describe": "ref.stats()",
    "drop": _COLUMNS,
    "drop_columns": _COLUMNS,
    "dropna": _WHERE,
    "dtype": _SCHEMA,
    "dtypes": "ref.schema",
    "filter": _WHERE,
    "from_dict": "yoga.from_arrays(arrays)",
    "groupby": _STATS,
    "head": "ref[:n]",
    "iloc": "ref[rows]",
    "isnull": _WHERE,
    "items": "ref[column]",
    "iter": _LOADER,
    "iterrows": "enumerate(ref)",
    "itertuples": "a loop over ref",
    "join": "ref.zip(other)",
    "keys": "ref.schema, which has the columns",
    "loc": _WHERE + ", or ref[rows]",
    "max": _STATS,
    "mean": _STATS,
    "merge": "ref.zip(other)",
    "min": _STATS,
    "ndim": _SCHEMA,
    "num_columns": "len(ref.schema.columns)",
    "num_rows": "len(ref)",
    "numpy": _COLUMN,
    "prefetch": "yoga.DataLoader(ref, prefetch_factor=n)",
    "push_to_hub": "ref.to_huggingface().push_to_hub(name)",
    "query": _WHERE,
    "remove_columns": _COLUMNS,
    "rename": _COMPUTED,
    "rename_column": _COMPUTED,
    "rename_columns": _COMPUTED,
    "sample": "ref.select(np.random.default_rng(0).choice(len(ref), n, replace=False))",
    "save_to_disk": "storage.submit(ref, id, version)",
    "select_columns": "ref.columns(names)",
    "set_format": _LOADER,
    "set_transform": _MAP,
    "shape": _SCHEMA,
    "shard": _SHARD,
    "shuffle": "yoga.DataLoader(ref, shuffle=True, seed=0)",
    "size": _SCHEMA,
    "skip": "ref[n:]",
    "sort": "ref.order_by(column)",
    "sort_values": "ref.order_by(column)",
    "std": _STATS,
    "sum": _STATS,
    "tail": "ref[-n:]",
    "take_columns": "ref.columns(names)",
    "to_csv": "ref.to_pandas().to_csv(path)",
    "to_dict": "ref.to_arrow().to_pydict()",
    "to_json": "ref.to_pandas().to_json(path)",
    "to_list": "list(ref)",
    "to_numpy": _COLUMN,
    "to_tf_dataset": "torchyoga.adapters.tensorflow.make_tf_dataset(ref.stream())",
    "to_torch": _LOADER,
    "tolist": "list(ref)",
    "train_test_split": "train, test = ref.split([0.9, 0.1])",
    "unbatch": "yoga.flat_map(function, ref)",
    "unique": f"np.unique({_COLUMN})",
    "value_counts": f"np.unique({_COLUMN}, return_counts=True)",
    "values": _COLUMN,
    "with_format": _LOADER,
    "with_transform": _MAP,
}

CALLS = {  # by name of the function: a call as it should be
    "DataRef.stream": "ref.stream(shuffle=True)",
    "Storage.__init__": 'Storage("~/datasets")',
    "Storage.cacheable": '@storage.cacheable("my-data", "1.0") above the function',
    "Storage.fetch": 'storage.fetch("my-data", "1.0")',
    "Storage.submit": 'storage.submit(dataset, "my-data", "1.0")',
    "map_batches": "ref.map_batches(function)",
    "mapped": _MAP,
    "split": "train, test = ref.split([0.9, 0.1])",
    "where": 'ref.where("label", lambda label: label == 3)',
}

_ARGUMENTS = {
    "batch_size": "yoga.DataLoader(ref, batch_size=n)",
    "batched": _COMPUTED,
    "bs": "batch_size=",
    "device": "yoga.to_device(loader, device)",
    "num_proc": "yoga.DataLoader(ref, num_workers=n)",
    "num_workers": "yoga.DataLoader(ref, num_workers=n)",
    "random_state": "seed=",
    "remove_columns": _COLUMNS,
    "target_transform": _MAP,
    "test_size": "the shares of all parts, as in train, test = ref.split([0.9, 0.1])",
    "train_size": "the shares of all parts, as in train, test = ref.split([0.9, 0.1])",
    "transform": f"{_MAP}, which changes each row when it is read, before a loader takes it",
    "transforms": f"{_MAP}, which changes each row when it is read, before a loader takes it",
    "world_size": "num_replicas=",
}


def check_arguments(name: str, given: Iterable[str], *functions: Callable[..., Any]) -> None:
    """Raises TypeError for the first argument that none of the functions has; says what to write instead."""
    known = {parameter for one in functions for parameter in inspect.signature(one).parameters}
    for argument in given:
        if argument not in known:
            near = difflib.get_close_matches(argument, sorted(known), 1, 0.6)
            instead = _ARGUMENTS.get(argument) or (f"{near[0]}=" if near else "")
            found = f"{name}() got an unexpected keyword argument {argument!r}"
            raise TypeError(f"{found}; use {instead}" if instead else found)


def advised(function: F) -> F:
    """A function of `CALLS`: called with arguments that it does not take, it says what to write instead."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # of what the function has done
            check_arguments(function.__qualname__, kwargs, function)
            raise TypeError(f"{error}; write {CALLS[function.__qualname__]}") from None

    return cast("F", call)
