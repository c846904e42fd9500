"""torchyoga: training data that is as easy to stop, continue and re-shard as a list is to slice."""

from . import errors
from .dataref import DataRef
from .loader import DataLoader
from .sampler import ResumableBatchSampler, ResumableSampler
from .schema import Schema
from .storage import Storage
from .stream import Stream

__all__ = [
    "DataLoader",
    "DataRef",
    "ResumableBatchSampler",
    "ResumableSampler",
    "Schema",
    "Storage",
    "Stream",
    "errors",
]
__version__ = "0.1.0"
