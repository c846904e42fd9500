"""torchyoga: training data that is as easy to stop, continue and re-shard as a list is to slice.

Names are loaded when they are first asked for, so that a command that reads a manifest need not load torch.
"""

import importlib
import os
from typing import TYPE_CHECKING

from . import errors
from .reading.provided import provide

if TYPE_CHECKING:
    from .adapters.arrays import from_arrays
    from .adapters.flat_map import flat_map
    from .adapters.hdf5 import from_hdf5
    from .adapters.image_folder import image_folder
    from .adapters.pickled import from_lmdb
    from .adapters.shards import shards
    from .adapters.webdataset import webdataset
    from .caching.comparing.diff import diff
    from .caching.comparing.overlap import overlap
    from .caching.parts.ray import ray_executor
    from .coding.decoders import audio, text
    from .coding.encoders import flac, jpeg, png, zstd
    from .coding.images import image
    from .coding.libraries import codecs
    from .loading.device import to_device
    from .loading.loader import DataLoader
    from .loading.meter.log import Log
    from .loading.meter.meter import Meter
    from .loading.meter.metered import metered
    from .loading.meter.open_telemetry import OpenTelemetry
    from .loading.meter.progress import ProgressBar
    from .loading.meter.tensorboard import Tensorboard
    from .order.proof import prove
    from .order.quality import ShuffleQuality, shuffle_quality
    from .reading.dataref import DataRef
    from .reading.stream import Stream
    from .rows.collate import jagged, padded
    from .rows.schema import Schema
    from .sampling.batch_sampler import ResumableBatchSampler
    from .sampling.sampler import ResumableSampler
    from .storage import Storage
    from .stores.history.keep import Keep
    from .tables.arrow_ref import from_arrow
    from .tables.frames import from_pandas, from_polars
    from .tables.huggingface import from_huggingface
    from .tables.parquet.petastorm import from_petastorm
    from .tables.parquet.ref import from_parquet
    from .tools.doctor.examination import doctor
    from .tools.report.report import report
    from .tools.view.view import view
    from .views.chosen import concat
    from .views.mixes.mix import mix
    from .views.ragged import RaggedColumn

__all__ = [
    "DataLoader",
    "DataRef",
    "Keep",
    "Log",
    "Meter",
    "OpenTelemetry",
    "ProgressBar",
    "RaggedColumn",
    "ResumableBatchSampler",
    "ResumableSampler",
    "Schema",
    "ShuffleQuality",
    "Storage",
    "Stream",
    "Tensorboard",
    "audio",
    "codecs",
    "concat",
    "diff",
    "doctor",
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
    "metered",
    "mix",
    "overlap",
    "padded",
    "png",
    "prove",
    "ray_executor",
    "report",
    "shards",
    "shuffle_quality",
    "text",
    "to_device",
    "view",
    "webdataset",
    "zstd",
]

_PLACES = {  # of the public names
    "DataLoader": ".loading.loader",
    "DataRef": ".reading.dataref",
    "Keep": ".stores.history.keep",
    "Log": ".loading.meter.log",
    "Meter": ".loading.meter.meter",
    "OpenTelemetry": ".loading.meter.open_telemetry",
    "ProgressBar": ".loading.meter.progress",
    "RaggedColumn": ".views.ragged",
    "ResumableBatchSampler": ".sampling.batch_sampler",
    "ResumableSampler": ".sampling.sampler",
    "Schema": ".rows.schema",
    "ShuffleQuality": ".order.quality",
    "Storage": ".storage",
    "Stream": ".reading.stream",
    "Tensorboard": ".loading.meter.tensorboard",
    "audio": ".coding.decoders",
    "codecs": ".coding.libraries",
    "concat": ".views.chosen",
    "diff": ".caching.comparing.diff",
    "doctor": ".tools.doctor.examination",
    "flac": ".coding.encoders",
    "flat_map": ".adapters.flat_map",
    "from_arrays": ".adapters.arrays",
    "from_arrow": ".tables.arrow_ref",
    "from_hdf5": ".adapters.hdf5",
    "from_huggingface": ".tables.huggingface",
    "from_lmdb": ".adapters.pickled",
    "from_pandas": ".tables.frames",
    "from_parquet": ".tables.parquet.ref",
    "from_petastorm": ".tables.parquet.petastorm",
    "from_polars": ".tables.frames",
    "image": ".coding.images",
    "image_folder": ".adapters.image_folder",
    "jagged": ".rows.collate",
    "jpeg": ".coding.encoders",
    "metered": ".loading.meter.metered",
    "mix": ".views.mixes.mix",
    "overlap": ".caching.comparing.overlap",
    "padded": ".rows.collate",
    "png": ".coding.encoders",
    "prove": ".order.proof",
    "ray_executor": ".caching.parts.ray",
    "report": ".tools.report.report",
    "shards": ".adapters.shards",
    "shuffle_quality": ".order.quality",
    "text": ".coding.decoders",
    "to_device": ".loading.device",
    "view": ".tools.view.view",
    "webdataset": ".adapters.webdataset",
    "zstd": ".coding.encoders",
}
_NEEDED = {"pyarrow": "arrow"}  # by public names that not every user needs: the extra that has the package
_FOR_USERS = {"adapters", "compat", "testing"}  # once they are imported


def _views() -> object:
    from .caching.kept import kept_where
    from .caching.kept_packs import kept_packing
    from .coding.decoded import decoded
    from .views.makers import Makers

    return Makers(kept_where, kept_packing, decoded)


def _exports() -> object:
    from .tables.exports import Exports

    return Exports()


def _page() -> object:
    from .tools.report.notebook import notebook_page

    return notebook_page


provide(views=_views, exports=_exports, page=_page)


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value: object = getattr(importlib.import_module(_PLACES[name], __name__), name)
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        raise ImportError(
            f"yoga.{name} needs {error.name}, which is not installed; "
            f"pip install 'torchyoga[{_NEEDED[error.name]}]'"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    loaded = {name for name in globals() if name in _FOR_USERS or name.startswith("__")}
    return sorted({*__all__, *loaded})


__version__ = "0.1.0"

if os.environ.get("TORCHYOGA_DOCTOR"):  # set by `yoga doctor -- command`
    importlib.import_module(".tools.doctor.watch", __name__).begin()
