"""Who may import whom, and what the package shows to the world."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import torchyoga
from torchyoga import errors

PACKAGE = Path(torchyoga.__file__).parent
# From the floor up: a file imports only files above it in this list. The successor of the list is
# docs/design.md.
HOUSE = [
    "errors",
    "cached",
    "warned",
    "code",
    "forks",
    "regular",
    "progress",
    "leaf",
    "compound",
    "schema",
    "order",
    "blocks",
    "maps",
    "quality",
    "place",
    "proof",
    "cursor",
    "checksum",
    "buffers",
    "columns",
    "collate",
    "nest",
    "ring",
    "announce",
    "ahead",
    "lookahead",
    "formats.pages",
    "formats.gather",
    "formats.items",
    "formats.checks",
    "formats.filters",
    "formats",
    "formats.lmdb",
    "formats.hdf5",
    "facts",
    "manifest",
    "names",
    "rooted",
    "files",
    "shelf",
    "reader",
    "staging",
    "versions",
    "store",
    "remote",
    "lease",
    "cache",
    "downloads",
    "mirror",
    "build",
    "batches",
    "pool",
    "stream",
    "dataref",
    "mapped",
    "seeding",
    "trainers",
    "ranks",
    "generators",
    "foreign",
    "sampler",
    "skipping",
    "replay",
    "moving",
    "loader",
    "device",
    "twice",
    "arguments",
    "adapters",
    "adapters.arrays",
    "adapters.dataflow",
    "adapters.hdf5",
    "adapters.pickled",
    "adapters.python",
    "adapters.ref",
    "adapters.torch",
    "adapters.sequence",
    "adapters.keras",
    "adapters.tensorflow",
    "storage",
    "testing",
    "compat",
    "compat.yogadl.keys",
    "compat.yogadl",
    "compat.yogadl.records",
    "compat.yogadl.tensors",
    "compat.yogadl.dataref",
    "compat.yogadl.storage",
    "compat.yogadl.tensorflow",
]
NEVER = {
    "order": {"torch", "os", "time", "random", "pathlib"},
    "blocks": {"torch", "os", "time", "random", "pathlib"},
    "maps": {"torch", "os", "time", "random", "pathlib"},
    "place": {"torch", "os", "time", "random", "pathlib"},
    "proof": {"torch", "os", "time", "numpy"},
    "warned": {"torch"},
    "cursor": {"torch", "os", "time", "numpy"},
    "trainers": {"torch", "accelerate", "keras"},
    "manifest": {"torch", "os", "pathlib"},
    "store": {"torch", "numpy"},
    "build": {"torch"},
    "stream": {"torch", "os"},
    "dataref": {"torch"},
    "adapters.python": {"torchyoga.formats.contract", "torchyoga.stores.local", "torchyoga.adapters.torch"},
    "adapters.torch": {"torchyoga.formats.contract", "torchyoga.stores.local", "torchyoga.adapters.python"},
    "adapters.tensorflow": {"torchyoga.formats.contract", "torchyoga.stores.local", "keras"},
    "adapters.keras": {"torchyoga.formats.contract", "torchyoga.stores.local", "tensorflow"},
    "adapters.sequence": {"torchyoga.formats.contract", "torchyoga.stores.local", "tensorflow", "keras"},
    "adapters.dataflow": {"torchyoga.formats.contract", "torchyoga.stores.local", "tensorpack"},
}


def file_of(room: str) -> Path:
    path = PACKAGE / room.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports_of(room: str) -> set[str]:
    """Full names of all that a room imports, wherever in the file it does so."""
    base = ["torchyoga", *room.split(".")]
    if not file_of(room).name.startswith("__init__"):
        base = base[:-1]
    found = set()
    for node in ast.walk(ast.parse(file_of(room).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = base[: len(base) - node.level + 1] if node.level else []
            module = ".".join([*parts, *([node.module] if node.module else [])])
            names = {f"{module}.{alias.name}" for alias in node.names}
            known = {f"torchyoga.{other}" for other in HOUSE}
            found |= (names & known) or {module}
    return found


def test_every_file_has_its_place() -> None:
    rooms = {
        path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        for path in PACKAGE.rglob("*.py")
    }
    assert {room.removesuffix(".__init__") for room in rooms} - {"__init__"} == set(HOUSE)


@pytest.mark.parametrize("room", HOUSE)
def test_a_file_imports_only_files_above_it(room: str) -> None:
    above = {f"torchyoga.{other}" for other in HOUSE[: HOUSE.index(room)]}
    ours = {name for name in imports_of(room) if name.startswith("torchyoga")}
    assert ours <= above
    for name in NEVER.get(room, set()):
        assert not any(found == name or found.startswith(name + ".") for found in imports_of(room))


def test_the_public_names() -> None:
    assert torchyoga.__all__ == [
        "DataLoader",
        "DataRef",
        "ResumableBatchSampler",
        "ResumableSampler",
        "Schema",
        "ShuffleQuality",
        "Storage",
        "Stream",
        "errors",
        "from_arrays",
        "from_hdf5",
        "from_lmdb",
        "jagged",
        "padded",
        "prove",
        "shuffle_quality",
        "to_device",
    ]
    assert all(hasattr(torchyoga, name) for name in torchyoga.__all__)
    assert set(errors.__all__) == {
        "CorruptError",
        "ExistsError",
        "NotFoundError",
        "RemoteError",
        "SchemaError",
        "StateError",
        "YogaError",
    }


def test_errors_have_one_root_and_a_builtin_parent() -> None:
    parents = {
        errors.SchemaError: (ValueError,),
        errors.NotFoundError: (KeyError, FileNotFoundError),
        errors.ExistsError: (FileExistsError,),
        errors.CorruptError: (ValueError,),
        errors.StateError: (ValueError,),
    }
    for error, builtins in parents.items():
        assert issubclass(error, (errors.YogaError,))
        assert all(issubclass(error, builtin) for builtin in builtins)
        assert str(error("asked, found, do")) == "asked, found, do"


def test_importing_loads_no_optional_framework() -> None:
    names = [
        "tensorflow",
        "keras",
        "tensorpack",
        "jax",
        "ml_dtypes",
        "h5py",
        "fsspec",
        "s3fs",
        "sklearn",
        "matplotlib",
        "torchdata",
    ]
    code = f"import sys, torchyoga; print([name for name in {names} if name in sys.modules])"
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert told.stdout.strip() == "[]"
