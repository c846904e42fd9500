"""`python -m torchyoga`: the versions of what is installed, for a report of a fault.

With arguments it is the command line, as `yoga` is.
"""

from __future__ import annotations

import platform
import sys
from importlib import metadata

from torchyoga import __version__

_REQUIRED = ("torch", "numpy", "lmdb", "h5py", "fsspec", "filelock", "tqdm", "click", "rich")
# What is used if it is installed, and what happens without it.
_OPTIONAL = {
    "isal": "CRC-32 is zlib's, at a tenth of the speed",
    "hdf5plugin": "HDF5 files with filters of its own cannot be read",
    "s3fs": "no s3:// URLs",
    "gcsfs": "no gs:// URLs",
    "adlfs": "no az:// URLs",
    "tensorflow": "no tf.data",
    "keras": "no Keras",
}


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _lines() -> list[str]:
    found = [
        ("torchyoga", __version__),
        ("Python", platform.python_version()),
        ("system", platform.platform()),
    ]
    found += [(name, _version_of(name) or "missing") for name in _REQUIRED]
    found += [(name, _version_of(name) or f"not installed: {without}") for name, without in _OPTIONAL.items()]
    return [f"{name:12}{version}" for name, version in found]


if __name__ == "__main__":
    if sys.argv[1:]:
        from torchyoga.tools.commands.group import main

        main()
    print("\n".join(_lines()))
