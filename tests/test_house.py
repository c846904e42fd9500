"""What no linter holds: which file imports which, the public names, and how large the rooms may be."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import ceilings
import pytest
import rooms
import surface
from children import run_program

import torchyoga
from torchyoga import errors
from torchyoga.reading.contract import Contract

ROOT, PACKAGE = ceilings.ROOT, ceilings.PACKAGE
# From the floor up: a room imports only rooms before it in this list, or others of its own folder.
HOUSE = re.findall(
    r"\w+",
    "errors process rows order files formats versions reading views stores tables building sampling loading"
    " checkpoint adapters caching coding storage tools testing compat",
)
ARITHMETIC = {"torch", "os", "time", "random", "pathlib"}
NEVER = {
    "process": {"torchyoga.errors", "torchyoga.rows"},
    "process.messages": {"torch"},
    "rows": {"os", "pathlib", "h5py", "lmdb"},
    "order": {"torch", "os", "time", "random", "pathlib"},
    "order.proof": {"numpy"},
    "order.cursor": {"numpy"},
    "order.state": {"numpy"},
    "files": {"torch"},
    "formats": {"fsspec"},
    "views.joined": ARITHMETIC,
    "views.windows": ARITHMETIC,
    "views.token_windows": ARITHMETIC,
    "views.token_batches": ARITHMETIC,
    "versions": {"torch", "fsspec"},
    "stores.local": {"torch", "numpy"},
    "building": {"torch"},
    "reading.stored_ref": {"torch", "mmap"},
    "caching": {"torchyoga.formats", "torchyoga.stores.local", "torchyoga.stores.remote"},
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
FOR_ALL_ADAPTERS = {"adapters.map_style", "adapters.numbered"}
PORTER = "adapters.sources"  # which finds the adapter for data
NEIGHBOURS = {
    # `as_dataref` is public there, too: both are about Keras, but this one never loads it.
    ("adapters.keras", "adapters.keras_sequence")
}
# What a page may name besides the public names: modules that programs import, and what a program calls.
MODULES = {"adapters", "compat", "testing", "views"}
# Private names of other packages for which there is no public one, and those of namedtuples.
THIRD_PARTY = re.findall(
    r"\w+",
    """
    _C _add_dataloader _batch_sampler _call _call_s3 _cdata _combined_loader _combined_loader_states_to_load
    _current_frames _disabled_torch_function_impl _exit _getframe _indices _iterator _location
    _num_batches _num_workers _popen _prefetch_factor _raise_not_found_for_status _rand _rcvd_idx _request
    _remove_dataloader _shared_state _shutdown_workers _steps_seen _strip_protocol _task_info _asdict
    _worker_pids_set _fields _make _replace
    """,
)


@cache
def files() -> dict[str, Path]:
    """All files by their names in the package, except the `__init__` files of folders."""
    named = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
        if not path.name.startswith("__") or path.parent.name == "compat"
    }
    return dict(sorted(named.items()))


def room_of(file: str) -> str:
    return file.partition(".")[0]


@cache
def ours(file: str, by_types: bool = False) -> set[str]:
    """The files that a file imports; the names of folders, where it imports those."""
    names = rooms.imported(files()[file], by_types)
    found = {name.removeprefix("torchyoga.") for name in names if "torchyoga." in name}
    found = {name if name in files() else name.rpartition(".")[0] or name for name in found}
    return {name for name in found if room_of(name) in HOUSE and name != file}


def test_every_file_has_its_place() -> None:
    assert set(map(room_of, files())) == set(HOUSE)


def test_a_file_imports_only_rooms_below_it() -> None:
    floor = HOUSE.index
    for file in files():
        for other in map(room_of, ours(file)):
            assert floor(other) <= floor(room_of(file)), f"{file} imports {other}"


def test_rooms_do_not_see_what_they_never_see() -> None:
    for file, path in files().items():
        for never in NEVER.get(room_of(file), set()) | NEVER.get(file, set()):
            seen = [name for name in rooms.imported(path) if f"{name}.".startswith(f"{never}.")]
            assert not seen, f"{file} imports {seen}"


def test_only_datarefs_load_rooms_above_them() -> None:
    later = re.compile(r"later\(\"torchyoga\.(\w+)")
    for file, path in files().items():
        own = HOUSE.index(room_of(file))
        above = [room for room in later.findall(path.read_text("utf-8")) if HOUSE.index(room) > own]
        assert not above or path in rooms.FLUENT, f"{file} loads {above}"


def test_there_are_no_rings_of_imports() -> None:
    left = {file: ours(file) & files().keys() for file in files()}
    while left:
        free = [file for file, needs in left.items() if needs.isdisjoint(left)]
        assert free, f"these import each other: {list(left)}"
        left = {file: needs for file, needs in left.items() if file not in free}


def test_what_a_type_checker_reads_in_a_circle_is_reading_and_views_alone() -> None:
    seen = {file: {file} for file in files()}
    for _ in range(5):  # twice as far each time: as far as 32 steps
        seen = {
            file: some.union(*(seen[two] for one in some for two in ours(one, True) & files().keys()))
            for file, some in seen.items()
        }
    circle = {file for file in seen["reading.dataref"] if "reading.dataref" in seen[file]}
    assert set(map(room_of, circle)) == {"reading", "views"}
    assert len(circle) < 32, sorted(circle)


def test_adapters_import_only_their_own_framework() -> None:
    adapters = {file for file in files() if room_of(file) == "adapters"} - FOR_ALL_ADAPTERS
    seen = {(file, other) for file in adapters - {PORTER} for other in ours(file) & adapters}
    assert seen == NEIGHBOURS
    for file in files():
        if room_of(file) in ("storage", "caching"):
            assert not ours(file) & (adapters - {PORTER}), f"{file} knows a framework"


def private_names_of_others(nodes: list[ast.AST]) -> set[str]:
    """Private attributes that a file reads and does not define."""
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    own = {node.attr for node in attributes if ast.unparse(node.value) in ("self", "cls")}
    own |= {
        node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    own |= {ast.unparse(node.target) for node in nodes if isinstance(node, ast.AnnAssign)}
    private = (node.attr for node in attributes if re.match("_(?!_)", node.attr))
    return set(private) - own - set(THIRD_PARTY) - vars(Contract).keys()


def test_no_file_reads_private_names_of_another() -> None:
    foreign = {
        file: private_names_of_others(list(ast.walk(rooms.tree(path)))) for file, path in files().items()
    }
    assert not any(foreign.values()), {file: names for file, names in foreign.items() if names}


def test_nothing_is_larger_than_it_may_be() -> None:
    kept, found = ceilings.kept(), ceilings.counts()
    assert kept.keys() == found.keys(), (
        "give new rooms a budget of another's, and run `python tests/ceilings.py`"
    )
    for name, (today, budget) in kept.items():
        assert found[name] <= max(today, budget), (
            f"{name}: {found[name]}, at most {max(today, budget)}; take out"
        )
        assert found[name] >= today - ceilings.SLACK or " " in name, (
            f"{name} fell: `python tests/ceilings.py`"
        )


def test_the_public_surface_is_the_one_that_was_agreed_on() -> None:
    agreed = surface.SURFACE.read_text(encoding="utf-8")
    assert surface.surface() == agreed, "if that is meant: python tests/surface.py"


def test_type_checkers_see_public_names_where_they_are_loaded_from() -> None:
    body = rooms.tree(PACKAGE / "__init__.py").body
    (block,) = (one for one in body if isinstance(one, ast.If) and "TYPE_CHECKING" in ast.unparse(one.test))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {one.name: f".{node.module}" for node in imports for one in node.names}
    assert seen == torchyoga._PLACES | {"codecs": ".coding"}


def test_every_name_that_is_mentioned_exists() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    pages = [page for page in pages if not {"_build", "generated"} & set(page.parts)]
    missing = {
        (path.name, name)
        for path in (*pages, *PACKAGE.rglob("*.py"))
        for name in re.findall(r"(?<![\w/.-])yoga\.([A-Za-z]\w*)", path.read_text(encoding="utf-8"))
        if name not in MODULES and not hasattr(torchyoga, name)
    }
    assert not missing


def test_errors_have_one_root_and_the_parents_that_the_page_says() -> None:
    for text in (errors.__doc__ or "", (ROOT / "docs" / "guarantees.md").read_text()):
        drawn = dict(re.findall(r"(?:-- |\| `)(\w+Error)(?:` \| | \()([\w, `]+?)(?: \||\))", text))
        assert drawn.keys() == set(errors.__all__) - {"YogaError"}
        for name, builtins in drawn.items():
            first, *parents = getattr(errors, name).__bases__
            assert first is errors.YogaError
            assert re.findall(r"\w+", builtins) == [parent.__name__ for parent in parents], name
            assert str(getattr(errors, name)("asked, found, do")) == "asked, found, do"


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
    finished = run_program(code)
    assert (finished.returncode, finished.stdout) == (0, ""), finished.stderr
