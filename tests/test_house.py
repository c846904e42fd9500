"""Which file may import which, and the public names of the package."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import ceilings
import pytest

import torchyoga
from torchyoga import errors

PACKAGE = Path(torchyoga.__file__).parent
# From the floor up: a room imports only rooms above it in this list, or others of its own folder.
HOUSE = [
    "errors",
    "process",
    "rows",
    "order",
    "files",
    "formats",
    "versions",
    "reading",
    "views",
    "stores",
    "tables",
    "building",
    "sampling",
    "loading",
    "checkpoint",
    "adapters",
    "caching",
    "coding",
    "storage",
    "tools",
    "testing",
    "compat",
]
ARITHMETIC = {"torch", "os", "time", "random", "pathlib"}
NEVER = {
    "process": {"torchyoga.errors", "torchyoga.rows"},
    "process.warned": {"torch"},
    "rows": {"os", "pathlib", "h5py", "lmdb"},
    "order": {"torch", "os", "time", "random", "pathlib"},
    "order.proof": {"numpy"},
    "order.cursor": {"numpy"},
    "order.state": {"numpy"},
    "files": {"torch"},
    "formats": {"fsspec"},
    "views.row_map": ARITHMETIC,
    "views.windows.anchors": ARITHMETIC,
    "views.tokens.line": ARITHMETIC,
    "views.tokens.plan": ARITHMETIC,
    "versions": {"torch", "fsspec"},
    "stores.local": {"torch", "numpy"},
    "building": {"torch"},
    "reading.file_parts": {"torch", "mmap"},
    "caching": {"torchyoga.formats", "torchyoga.stores.local", "torchyoga.stores.mirror"},
    "storage": {"torch", "numpy"},
    "reading.stream": {"torch", "os"},
    "reading.dataref": {"torch"},
    "sampling": {"torchyoga.formats", "torchyoga.stores"},
    "loading": {"torchyoga.formats", "torchyoga.stores"},
    "sampling.trainers": {"torch", "accelerate", "keras"},
    "adapters": {"torchyoga.stores", "torchyoga.formats.lmdb"},
    "adapters.sources": {"torchyoga.formats", "torchyoga.loading", "tensorpack"},
    "adapters.tensorflow": {"torchyoga.formats", "keras"},
    "adapters.keras": {"torchyoga.formats", "tensorflow"},
    "adapters.keras_sequence": {"torchyoga.formats", "tensorflow", "keras"},
}
# What every adapter may import of its folder; it knows no framework but torch.
FOR_ALL_ADAPTERS = {"map_style", "numbered"}
PORTER = "adapters.sources"  # which finds the adapter for data
NEIGHBOURS = {
    # `as_dataref` is public there, too: both are about Keras, but this one never loads it.
    ("adapters.keras", "adapters.keras_sequence"),
    ("adapters.webdataset", "adapters.shard_stream"),
}
# A DataRef makes views and tables, which are made of DataRefs: this one file closes that circle, when a
# method is first called. Its arrows up stand twice, for type checkers and by name.
FLUENT = "reading.dataref"
MOST_ENTRIES = 25  # in a folder
MOST_ANY = 10  # in annotations, of 1,000 lines of code


@cache
def rooms() -> list[str]:
    """All files except the `__init__` files of folders."""
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    return sorted(
        ".".join(path.parts).removesuffix(".__init__")
        for path in paths
        if not path.name.startswith("__") or path.parts[0] == "compat"
    )


def files_in(own: str) -> list[str]:
    """All files of a room."""
    return [room for room in rooms() if room.partition(".")[0] == own]


def file_of(room: str) -> Path:
    path = PACKAGE / room.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def nodes_of(room: str) -> list[ast.AST]:
    return ceilings.nodes_by_file()[file_of(room)]


def for_type_checkers(room: str) -> ast.Module:
    """What a file imports for type checkers only."""
    body: list[ast.stmt] = []
    for node in ceilings.trees()[file_of(room)].body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            body += node.body
    return ast.Module(body, [])


def loaded_later(room: str) -> set[str]:
    """Modules of ours that a file loads when they are first used."""
    return set(re.findall(r"later\(\"torchyoga\.([\w.]+)\"\)", file_of(room).read_text()))


@cache
def imports_of(room: str) -> set[str]:
    """Full names of everything that a file imports, anywhere in it."""
    base = ["torchyoga", *room.split(".")]
    if not file_of(room).name.startswith("__init__"):
        base = base[:-1]
    known = {f"torchyoga.{other}" for other in rooms()}
    found = set()
    typed = set(map(id, ast.walk(for_type_checkers(room)))) if room == FLUENT else set()
    for node in nodes_of(room):
        if id(node) in typed:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = base[: len(base) - node.level + 1] if node.level else []
            module = ".".join([*parts, *([node.module] if node.module else [])])
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= (names & known) or {module}
    return found


def ours(room: str) -> set[str]:
    """The rooms that a room imports."""
    return {name.removeprefix("torchyoga.") for name in imports_of(room) if name.startswith("torchyoga.")}


def floor(room: str) -> int:
    return HOUSE.index(room.partition(".")[0])


def test_every_file_has_its_place() -> None:
    assert {room.partition(".")[0] for room in rooms()} == set(HOUSE)


def test_folders_are_small_and_say_what_they_are() -> None:
    for folder in (
        PACKAGE,
        *(path for path in PACKAGE.rglob("*") if path.is_dir() and path.name != "__pycache__"),
    ):
        entries = [path for path in folder.iterdir() if path.name not in ("__pycache__", "py.typed")]
        assert len(entries) < MOST_ENTRIES, folder
        if entries:
            assert ast.get_docstring(ceilings.trees()[folder / "__init__.py"]), folder


@pytest.mark.parametrize("own", HOUSE)
def test_a_file_imports_only_rooms_above_it(own: str) -> None:
    for room in files_in(own):
        for other in ours(room):
            assert floor(other) < floor(room) or other.partition(".")[0] == own, f"{room} imports {other}"
        for name in NEVER.get(own, set()) | NEVER.get(room, set()):
            never = [found for found in imports_of(room) if f"{found}.".startswith(f"{name}.")]
            assert not never, f"{room} imports {never}"


def test_only_datarefs_load_rooms_above_them() -> None:
    above = {
        room
        for room in rooms()
        for other in loaded_later(room)
        if floor(other) > floor(room) and room != other.partition(".")[0]
    }
    assert above == {FLUENT}


@pytest.mark.parametrize("room", [room for room in rooms() if loaded_later(room)])
def test_type_checkers_see_what_is_loaded_later(room: str) -> None:
    package = room.split(".")[:-1]
    typed = set()
    for node in for_type_checkers(room).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1], *filter(None, [node.module])]
            typed |= {".".join([*base, alias.name]) for alias in node.names}
    assert loaded_later(room) == typed & set(rooms())
    assert room != FLUENT or typed.isdisjoint(ours(room))


def test_adapters_import_only_their_own_framework() -> None:
    shared = {f"adapters.{name}" for name in FOR_ALL_ADAPTERS}
    assert shared <= set(rooms())
    adapters = {room for room in rooms() if room.startswith("adapters.")} - shared
    seen = {(room, other) for room in adapters for other in ours(room) & adapters if room != PORTER}
    assert seen == NEIGHBOURS
    for room in ("storage", *(room for room in rooms() if room.startswith("caching."))):
        assert not ours(room) & (adapters - {PORTER}), f"{room} knows a framework"


def test_functions_that_build_sources_are_called_source_of() -> None:
    shared = {f"adapters.{name}" for name in FOR_ALL_ADAPTERS}
    for room in (room for room in rooms() if room.startswith("adapters.") and room != PORTER):
        tree = ceilings.trees()[file_of(room)]
        makes = any(
            isinstance(node, ast.ClassDef)
            and {"RowSource", "BlockSource"} & {ast.unparse(b) for b in node.bases}
            for node in tree.body
        )
        has_verb = any(isinstance(node, ast.FunctionDef) and node.name == "source_of" for node in tree.body)
        assert has_verb == (room in ours(PORTER) - shared - {"adapters.arrays"})  # which makes a DataRef
        assert has_verb or not makes or room in shared


def test_any_is_rare() -> None:
    nodes = [node for nodes in ceilings.nodes_by_file().values() for node in nodes]
    uses = sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)
    assert 1000 * uses / ceilings.counts()["lines"] <= MOST_ANY


def test_there_are_no_import_cycles() -> None:
    left = {room: ours(room) & set(rooms()) - {room} for room in rooms()}
    while left:
        free = {room for room, needs in left.items() if not needs & set(left)}
        assert free, f"these import each other: {sorted(left)}"
        left = {room: needs for room, needs in left.items() if room not in free}


def test_the_public_names() -> None:
    assert torchyoga.__all__ == [
        "Checkpoint",
        "DataLoader",
        "DataRef",
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
        "codecs",
        "concat",
        "diff",
        "doctor",
        "errors",
        "flat_map",
        "from_arrays",
        "from_arrow",
        "from_hdf5",
        "from_huggingface",
        "from_jsonl",
        "from_litdata",
        "from_lmdb",
        "from_mds",
        "from_megatron",
        "from_parquet",
        "from_petastorm",
        "from_tfrecord",
        "from_tokens",
        "from_zarr",
        "image_folder",
        "jagged",
        "metered",
        "mix",
        "overlap",
        "padded",
        "prove",
        "ray_executor",
        "report",
        "shards",
        "shuffle_quality",
        "to_device",
        "view",
        "webdataset",
    ]
    assert all(hasattr(torchyoga, name) for name in torchyoga.__all__)
    assert set(errors.__all__) == {
        "BusyError",
        "CorruptError",
        "ExistsError",
        "LostError",
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
        errors.BusyError: (TimeoutError,),
        errors.LostError: (RuntimeError,),
        errors.RemoteError: (OSError,),
    }
    assert {error.__name__ for error in parents} == set(errors.__all__) - {"YogaError"}
    for error, builtins in parents.items():
        assert issubclass(error, (errors.YogaError,))
        assert all(issubclass(error, builtin) for builtin in builtins)
        assert str(error("asked, found, do")) == "asked, found, do"


def test_the_docstring_draws_the_tree_of_errors() -> None:
    for text in (errors.__doc__ or "", (PACKAGE.parent / "docs" / "errors.md").read_text()):
        drawn = dict(re.findall(r"(?:-- |\| `)(\w+Error)(?:` \| | \()([\w, `]+?)(?: \||\))", text))
        assert drawn.keys() == set(errors.__all__) - {"YogaError"}
        for name, builtins in drawn.items():
            parents = [parent.__name__ for parent in getattr(errors, name).__bases__]
            assert re.findall(r"\w+", builtins) == parents[1:], name


def test_importing_loads_no_optional_framework() -> None:
    names = [
        "tensorflow",
        "keras",
        "tensorpack",
        "jax",
        "ml_dtypes",
        "h5py",
        "fsspec",
        "pyarrow",
        "s3fs",
        "sklearn",
        "matplotlib",
        "torchdata",
        "pyarrow",
        "pandas",
        "polars",
        "datasets",
    ]
    code = f"import sys, torchyoga; print([name for name in {names} if name in sys.modules])"
    command = [sys.executable, "-c", code]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert finished.stdout.strip() == "[]"


@pytest.mark.parametrize("turned", ["enable", "disable"])
def test_loading_names_collects_no_garbage_and_leaves_the_collector_as_it_was(turned: str) -> None:
    code = f"""
import gc, torch, torch.utils.data, torchyoga
gc.{turned}()
gc.callbacks.append(lambda phase, about: print("full") if about["generation"] == 2 else None)
torchyoga.Storage, torchyoga.DataLoader
assert gc.isenabled() is ({turned!r} == "enable")
gc.callbacks.clear()
"""
    command = [sys.executable, "-c", code]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert finished.stdout == ""


# Private names of other packages for which there is no public one.
THIRD_PARTY = {
    "_indices",
    "_C",
    "_add_dataloader",
    "_batch_sampler",
    "_call",
    "_call_s3",
    "_combined_loader",
    "_combined_loader_states_to_load",
    "_current_frames",
    "_disabled_torch_function_impl",
    "_get_default_store",
    "_getframe",
    "_iterator",
    "_location",
    "_num_batches",
    "_num_workers",
    "_prefetch_factor",
    "_raise_not_found_for_status",
    "_rand",
    "_rcvd_idx",
    "_remove_dataloader",
    "_shared_state",
    "_shutdown_workers",
    "_steps_seen",
    "_strip_protocol",
    "_task_info",
}
OF_NAMEDTUPLES = {"_asdict", "_fields", "_make", "_replace"}


def private_names_of_others(nodes: list[ast.AST]) -> set[str]:
    """Private attributes that a file reads and does not define."""
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    own = {
        node.attr
        for node in attributes
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    }
    own |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {
        node.target.id
        for node in nodes
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return {
        ast.unparse(node)
        for node in attributes
        if node.attr.startswith("_") and not node.attr.startswith("__")
        if node.attr not in own | THIRD_PARTY | OF_NAMEDTUPLES
    }


@pytest.mark.parametrize("own", HOUSE)
def test_no_file_reads_private_names_of_another(own: str) -> None:
    foreign = {room: private_names_of_others(nodes_of(room)) for room in files_in(own)}
    assert not any(foreign.values()), {room: names for room, names in foreign.items() if names}
