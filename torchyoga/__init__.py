"""torchyoga: training data that is as easy to stop, continue and re-shard as a list is to slice."""

from typing import TYPE_CHECKING

from . import errors
from .adapters.arrays import from_arrays
from .adapters.flat_map import flat_map
from .adapters.image_folder import image_folder
from .adapters.pickled import from_lmdb
from .adapters.webdataset import webdataset
from .caching.kept import kept_where
from .coding.decoded import decoded
from .coding.decoders import audio, image, text
from .coding.encoders import flac, jpeg, png, zstd
from .coding.libraries import codecs
from .loading.device import to_device
from .loading.loader import DataLoader
from .order.proof import prove
from .order.quality import ShuffleQuality, shuffle_quality
from .reading.dataref import DataRef, provide_views
from .reading.stream import Stream
from .rows.collate import jagged, padded
from .rows.schema import Schema
from .sampling.batch_sampler import ResumableBatchSampler
from .sampling.sampler import ResumableSampler
from .storage import Storage
from .views.chosen import concat
from .views.makers import Makers
from .views.ragged import RaggedColumn

if TYPE_CHECKING:
    from .adapters.hdf5 import from_hdf5

__all__ = [
    "DataLoader",
    "DataRef",
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
    "errors",
    "flac",
    "flat_map",
    "from_arrays",
    "from_hdf5",
    "from_lmdb",
    "image",
    "image_folder",
    "jagged",
    "jpeg",
    "padded",
    "png",
    "prove",
    "shuffle_quality",
    "text",
    "to_device",
    "webdataset",
    "zstd",
]


provide_views(Makers(kept_where, decoded))

_FOR_USERS = {"adapters", "compat", "testing"}  # once they are imported


def __getattr__(name: str) -> object:
    if name == "from_hdf5":  # loads h5py
        from .adapters.hdf5 import from_hdf5

        return from_hdf5
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    loaded = {name for name in globals() if name in _FOR_USERS or name.startswith("__")}
    return sorted({*__all__, *loaded})


__version__ = "0.1.0"
