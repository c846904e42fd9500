"""torchyoga: training data that is as easy to stop, continue and re-shard as a list is to slice."""

import importlib
from typing import TYPE_CHECKING

from . import errors
from .adapters.arrays import from_arrays
from .adapters.flat_map import flat_map
from .adapters.image_folder import image_folder
from .adapters.pickled import from_lmdb
from .adapters.shards import shards
from .adapters.webdataset import webdataset
from .caching.comparing.diff import diff
from .caching.comparing.overlap import overlap
from .caching.kept import kept_where
from .caching.kept_packs import kept_packing
from .caching.parts.ray import ray_executor
from .coding.decoded import decoded
from .coding.decoders import audio, text
from .coding.encoders import flac, jpeg, png, zstd
from .coding.images import image
from .coding.libraries import codecs
from .loading.device import to_device
from .loading.loader import DataLoader
from .order.proof import prove
from .order.quality import ShuffleQuality, shuffle_quality
from .reading.dataref import DataRef, provide_exports, provide_views
from .reading.stream import Stream
from .rows.collate import jagged, padded
from .rows.schema import Schema
from .sampling.batch_sampler import ResumableBatchSampler
from .sampling.sampler import ResumableSampler
from .storage import Storage
from .stores.history.keep import Keep
from .tables.exports import Exports
from .views.chosen import concat
from .views.makers import Makers
from .views.mixes.mix import mix
from .views.ragged import RaggedColumn

if TYPE_CHECKING:
    from .adapters.hdf5 import from_hdf5
    from .tables.arrow_ref import from_arrow
    from .tables.frames import from_pandas, from_polars
    from .tables.huggingface import from_huggingface
    from .tables.parquet.petastorm import from_petastorm
    from .tables.parquet.ref import from_parquet

__all__ = [
    "DataLoader",
    "DataRef",
    "Keep",
    "RaggedColumn",
    "ResumableBatchSampler",
    "ResumableSampler",
    "Schema",
    "ShuffleQuality",
    "Storage",
    "Stream",
    "audio",
    "codecs",
    "concat",
    "diff",
    "errors",
    "flac",
    "flat_map",
    "from_arrays",
    "from_arrow",
    "from_hdf5",
    "from_huggingface",
    "from_lmdb",
    "from_pandas",
    "from_parquet",
    "from_petastorm",
    "from_polars",
    "image",
    "image_folder",
    "jagged",
    "jpeg",
    "mix",
    "overlap",
    "padded",
    "png",
    "prove",
    "ray_executor",
    "shards",
    "shuffle_quality",
    "text",
    "to_device",
    "webdataset",
    "zstd",
]


provide_views(Makers(kept_where, kept_packing, decoded))
provide_exports(Exports())

_BY_PYARROW = {
    "from_arrow": ".tables.arrow_ref",
    "from_huggingface": ".tables.huggingface",
    "from_pandas": ".tables.frames",
    "from_parquet": ".tables.parquet.ref",
    "from_petastorm": ".tables.parquet.petastorm",
    "from_polars": ".tables.frames",
}
_FOR_USERS = {"adapters", "compat", "testing"}  # once they are imported


def __getattr__(name: str) -> object:
    if name == "from_hdf5":  # loads h5py
        from .adapters.hdf5 import from_hdf5

        return from_hdf5
    if name in _BY_PYARROW:
        try:
            return getattr(importlib.import_module(_BY_PYARROW[name], __name__), name)
        except ModuleNotFoundError as error:
            if error.name != "pyarrow":
                raise
            raise ImportError(
                f"yoga.{name} needs pyarrow, which is not installed; pip install 'torchyoga[arrow]'"
            ) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    loaded = {name for name in globals() if name in _FOR_USERS or name.startswith("__")}
    return sorted({*__all__, *loaded})


__version__ = "0.1.0"
