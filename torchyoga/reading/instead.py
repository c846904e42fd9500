"""A call that other libraries know -> what to write here instead."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_COLUMNS = "ref.columns(names), with the names to keep"
_COMPUTED = "ref.map_batches(function), which returns the columns"
_MAP = "ref.map(function)"

# What to write instead of attributes that Hugging Face, pandas, tf.data and torch know.
_BY_METHOD = {
    "storage.add_columns(data, id), or ref.zip(other)": "add_column",
    "storage.append(data, id), or yoga.concat([ref, other])": "append",
    _MAP: "apply map_tuple set_transform to_tuple with_transform",
    "a loop over ref, whose rows hold NumPy's values": "as_numpy_iterator",
    _COMPUTED: "assign astype cast cast_column rename rename_column rename_columns",
    "yoga.DataLoader(ref, batch_size=n), which gives tensors": "batch batched iter set_format with_format",
    "storage.submit(ref, id, version)": "cache save_to_disk",
    "ref.schema, which has the columns": "column_names dtypes keys",
    "yoga.concat([ref, other])": "concat concatenate",
    "ref itself: its rows never change": "copy",
    "len(ref)": "count num_rows",
    "ref.stats()": "describe",
    _COLUMNS: "drop drop_columns remove_columns",
    "ref.where(column, condition)": "dropna filter isnull query",
    "ref.schema, which has the columns, and len(ref)": "dtype ndim shape size",
    "ref.decoded(codecs)": "decode",
    "yoga.from_arrays(arrays)": "from_dict",
    "ref.stats(), or np.asarray(ref[column])": "groupby max mean min std sum",
    "ref[:n]": "head",
    "ref[rows]": "iloc",
    "ref[column]": "items",
    "enumerate(ref)": "iterrows",
    "a loop over ref": "itertuples",
    "ref.zip(other)": "join merge",
    "ref.where(column, condition), or ref[rows]": "loc",
    "len(ref.schema.columns)": "num_columns",
    "np.asarray(ref[column])": "numpy to_numpy values",
    "yoga.DataLoader(ref, prefetch_factor=n)": "prefetch",
    "ref.to_huggingface().push_to_hub(name)": "push_to_hub",
    "ref.select(np.random.default_rng(0).choice(len(ref), n, replace=False))": "sample",
    "ref.columns(names)": "select_columns take_columns",
    "yoga.DataLoader(ref, num_replicas=n, rank=r), or ref[r::n]": "shard",
    "yoga.DataLoader(ref, shuffle=True, seed=0)": "shuffle",
    "ref[n:]": "skip",
    "ref.order_by(column)": "sort sort_values",
    "ref[-n:]": "tail",
    "ref.to_pandas().to_csv(path)": "to_csv",
    "ref.to_arrow().to_pydict()": "to_dict",
    "ref.to_pandas().to_json(path)": "to_json",
    "list(ref)": "to_list tolist",
    "torchyoga.adapters.tensorflow.make_tf_dataset(ref.stream())": "to_tf_dataset",
    "train, test = ref.split([0.9, 0.1])": "train_test_split",
    "yoga.flat_map(ref, function)": "unbatch",
    "np.unique(np.asarray(ref[column]))": "unique",
    "np.unique(np.asarray(ref[column]), return_counts=True)": "value_counts",
}

_BY_VIEW = {  # methods of some views alone
    "ref.packed(...) has, see docs/packing.md": "report members",
    "yoga.mix(...) has, see docs/mixtures.md": "reweighted counts passes num_epochs names",
}

CALLS = {  # by name of the function: a call as it should be
    "DataRef.stream": "ref.stream(shuffle=True)",
    "Storage.__init__": 'Storage("~/datasets")',
    "Storage.cacheable": '@storage.cacheable("my-data", "1.0") above the function',
    "Storage.fetch": 'storage.fetch("my-data", "1.0")',
    "Storage.submit": 'storage.submit(dataset, "my-data", "1.0")',
    "map_batches": "ref.map_batches(function)",
    "map": _MAP,
    "split": "train, test = ref.split([0.9, 0.1])",
    "where": 'ref.where("label", lambda label: label == 3)',
}

_BY_ARGUMENT = {  # what to write instead: arguments that it is for
    "yoga.DataLoader(ref, batch_size=n)": "batch_size",
    _COMPUTED: "batched",
    "batch_size=": "bs",
    "yoga.to_device(loader, device)": "device",
    "yoga.DataLoader(ref, num_workers=n)": "num_proc num_workers",
    "seed=": "random_state",
    _COLUMNS: "remove_columns",
    _MAP: "target_transform",
    "the shares of all parts, as in train, test = ref.split([0.9, 0.1])": "test_size train_size",
    f"{_MAP}, which changes each row when it is read, before a loader takes it": "transform transforms",
    "num_replicas=": "world_size",
}


METHODS, METHODS_OF, _ARGUMENTS = (
    {name: instead for instead, names in some.items() for name in names.split()}
    for some in (_BY_METHOD, _BY_VIEW, _BY_ARGUMENT)
)


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
