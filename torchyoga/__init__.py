"""A PyTorch DataLoader that you can stop after any batch and resume on another number of GPUs.

Names are loaded when they are first asked for, so that a command that reads a manifest need not load torch.
"""

import gc
import importlib
import os
from typing import TYPE_CHECKING

from . import errors as errors

if TYPE_CHECKING:
    from .adapters.arrays import from_arrays as from_arrays
    from .adapters.flat_map import flat_map as flat_map
    from .adapters.hdf5 import from_hdf5 as from_hdf5
    from .adapters.image_folder import image_folder as image_folder
    from .adapters.pickled import from_lmdb as from_lmdb
    from .caching.diff import diff as diff
    from .checkpoint.checkpoint import Checkpoint as Checkpoint
    from .coding import codecs as codecs
    from .loading.loader import DataLoader as DataLoader
    from .loading.loader import to_device as to_device
    from .order.proof import prove as prove
    from .order.quality import ShuffleQuality as ShuffleQuality
    from .order.quality import shuffle_quality as shuffle_quality
    from .reading.dataref import DataRef as DataRef
    from .reading.stream import Stream as Stream
    from .rows.collate import jagged as jagged
    from .rows.collate import padded as padded
    from .rows.schema import Schema as Schema
    from .sampling.sampler import ResumableBatchSampler as ResumableBatchSampler
    from .sampling.sampler import ResumableSampler as ResumableSampler
    from .storage import Storage as Storage
    from .tables.arrow_ref import from_arrow as from_arrow
    from .tables.foreign.json_lines import from_jsonl as from_jsonl
    from .tables.foreign.litdata import from_litdata as from_litdata
    from .tables.foreign.mds import from_mds as from_mds
    from .tables.foreign.tfrecord import from_tfrecord as from_tfrecord
    from .tables.foreign.tokens import from_megatron as from_megatron
    from .tables.foreign.tokens import from_tokens as from_tokens
    from .tables.foreign.webdataset import webdataset as webdataset
    from .tables.foreign.zarr import from_zarr as from_zarr
    from .tables.huggingface import from_huggingface as from_huggingface
    from .tables.parquet.petastorm import from_petastorm as from_petastorm
    from .tables.parquet.ref import from_parquet as from_parquet
    from .tools.doctor.examination import doctor as doctor
    from .tools.report.page import report as report
    from .tools.view.view import view as view
    from .views.chosen import concat as concat
    from .views.mix import mix as mix
    from .views.scan import RaggedColumn as RaggedColumn

_PLACES = {  # of the public names
    "Checkpoint": ".checkpoint.checkpoint",
    "DataLoader": ".loading.loader",
    "DataRef": ".reading.dataref",
    "RaggedColumn": ".views.scan",
    "ResumableBatchSampler": ".sampling.sampler",
    "ResumableSampler": ".sampling.sampler",
    "Schema": ".rows.schema",
    "ShuffleQuality": ".order.quality",
    "Storage": ".storage",
    "Stream": ".reading.stream",
    "concat": ".views.chosen",
    "diff": ".caching.diff",
    "doctor": ".tools.doctor.examination",
    "flat_map": ".adapters.flat_map",
    "from_arrays": ".adapters.arrays",
    "from_arrow": ".tables.arrow_ref",
    "from_hdf5": ".adapters.hdf5",
    "from_huggingface": ".tables.huggingface",
    "from_jsonl": ".tables.foreign.json_lines",
    "from_litdata": ".tables.foreign.litdata",
    "from_lmdb": ".adapters.pickled",
    "from_mds": ".tables.foreign.mds",
    "from_megatron": ".tables.foreign.tokens",
    "from_parquet": ".tables.parquet.ref",
    "from_petastorm": ".tables.parquet.petastorm",
    "from_tfrecord": ".tables.foreign.tfrecord",
    "from_tokens": ".tables.foreign.tokens",
    "from_zarr": ".tables.foreign.zarr",
    "image_folder": ".adapters.image_folder",
    "jagged": ".rows.collate",
    "mix": ".views.mix",
    "padded": ".rows.collate",
    "prove": ".order.proof",
    "report": ".tools.report.page",
    "shuffle_quality": ".order.quality",
    "to_device": ".loading.loader",
    "view": ".tools.view.view",
    "webdataset": ".tables.foreign.webdataset",
}
__all__ = sorted([*_PLACES, "codecs", "errors"])
_NEEDED = {"pyarrow": "arrow"}  # by public names that not every user needs: the extra that has the package
_FOR_USERS = {"adapters", "compat", "testing"}  # once they are imported


def __getattr__(name: str) -> object:
    if name == "codecs":  # a module, which needs torch
        globals()[name] = module = importlib.import_module(".coding.codecs", __name__)
        return module
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    collects = gc.isenabled()
    gc.disable()  # to look through all that torch has made takes as long as the rest of this
    try:
        value: object = getattr(importlib.import_module(_PLACES[name], __name__), name)
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        raise ImportError(
            f"yoga.{name} needs {error.name}, which is not installed; "
            f"pip install 'torchyoga[{_NEEDED[error.name]}]'"
        ) from error
    finally:
        if collects:
            gc.enable()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    loaded = {name for name in globals() if name in _FOR_USERS or name.startswith("__")}
    return sorted({*__all__, *loaded})


__version__ = "0.1.0"

if os.path.isdir(os.environ.get("TORCHYOGA_DOCTOR", "")):  # set by `yoga doctor -- command`
    importlib.import_module(".tools.doctor.watch", __name__).begin()
