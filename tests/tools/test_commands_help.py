"""Each command's help has examples, and each of them runs; names of the group are known without imports."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commanding import by_ada, process, run, said, timeless
from golden.foreign_rows import FOREIGN

import torchyoga as yoga
from docs import ROOT
from torchyoga.tools.commands.group import COMMANDS

# Those of storages; others, such as doctor, are run where they are tested.
OF_STORAGES = [
    *("append", "check", "convert", "copy", "diff", "gc", "head", "info", "log", "ls", "rm", "tag")
]
DIFFERENT = {"diff"}  # whose exit code is 1 if versions differ, as in its examples


def examples(name: str) -> list[str]:
    """The lines of a command's help that begin with its name."""
    return re.findall(rf"^ +(yoga {name}\b.*)$", said(name, "--help"), re.MULTILINE)


def installed() -> list[str]:
    found = re.findall(r"^  ([a-z-]+)  +\w", said("--help"), re.MULTILINE)
    return [name for name in found if name in COMMANDS]


def test_the_group_shows_each_command_with_its_line() -> None:
    text = said("--help")
    for name in OF_STORAGES:
        assert re.search(rf"^  {name} +{re.escape(COMMANDS[name][:40])}", text, re.MULTILINE), name
    assert re.findall(r"^(\w+):\n  ", text, re.MULTILINE) == ["Options", "Look", "Make", "Keep", "Check"]
    assert set(OF_STORAGES) <= set(installed())
    assert said() == text
    assert said("-h") == text
    assert said("--version") == f"torchyoga {yoga.__version__}\n"


def test_each_command_has_examples() -> None:
    for name in installed():
        assert examples(name), f"the help of {name} has no example"
        assert "\b" not in said(name, "--help")


@pytest.mark.parametrize("name", OF_STORAGES)
def test_examples_in_the_help_run(name: str, storage: yoga.Storage) -> None:
    shutil.copytree(FOREIGN / "mds" / "gz", "shards")
    for number, line in enumerate(examples(name)):
        line = line.replace("s3://bucket/shards", "shards").replace("mds://folder", "mds://shards")
        if name == "append":  # each of its examples publishes the same version
            line = line.replace(" images ", f" images{number} ")
            make_files_for(line, storage, f"images{number}")
        words = process("bash", "-c", f'yoga() {{ printf "%s\\n" "$@"; }}; {line}').stdout.splitlines()
        found = run(*words)
        assert found.exit_code == (1 if name in DIFFERENT else 0), (line, found.output)
        assert found.stdout


def make_files_for(line: str, storage: yoga.Storage, id: str) -> None:
    """A version, and files to append to it, as an example of `append` names them."""
    if ".parquet" in line:
        storage.submit({"label": np.arange(2)}, id, "1.0", progress=False)
        for path in ("more.parquet", "more2.parquet"):
            pq.write_table(pa.table({"label": [0, 1]}), path)
    else:
        storage.submit(storage.fetch("images", "1.0"), id, "1.0", progress=False)


LIGHT = [
    ["ls", "-l"],
    ["info", "images"],
    ["log", "images", "-n", "1"],
    ["tag", "images", "new", "1.0"],
    ["tag", "images"],
    ["gc", "--keep", "1"],
    ["check", "--manifests"],
]
OF_ROWS = [
    ["head", "images", "2"],
    ["head", "images", "2", "--columns", "label", "--json"],
    ["check", "images"],
]


# What runs commands one after the other, and says behind each what has been loaded.
RUNNING = """
import json, sys
from torchyoga.tools.commands.group import command

for arguments in json.loads(sys.argv[1]):
    try:
        command.main(arguments, prog_name="yoga")
    except SystemExit as end:
        own = [name[25:] for name in sys.modules if name.startswith("torchyoga.tools.commands.")]
        heavy = {"torch", "numpy", "rich", "h5py", "lmdb", "fsspec", "tqdm", "asyncio"} & set(sys.modules)
        print("loaded", json.dumps([end.code, sorted(own), sorted(heavy)]))
"""


def loaded_by(commands: list[list[str]]) -> list[tuple[int, list[str], list[str]]]:
    """The exit code of each, and what has been loaded then: modules of commands, and heavy ones."""
    found = process(sys.executable, "-c", RUNNING, json.dumps(commands))
    lines = [line.removeprefix("loaded ") for line in found.stdout.splitlines() if line.startswith("loaded")]
    assert len(lines) == len(commands), found.stderr
    return [tuple(json.loads(line)) for line in lines]


def test_the_help_of_the_group_imports_no_command() -> None:
    for code, own, heavy in loaded_by([["--help"], ["--version"], ["lss"]]):
        assert (own, heavy) == (["group", "output", "places"], []), code


def test_help_and_commands_on_manifests_load_neither_torch_nor_numpy(storage: yoga.Storage) -> None:
    rows = [{"t": torch.zeros(2), "x": np.zeros(2)}]
    storage.submit(rows, "tensors", "1", info={"classes": ["a"]}, progress=False)
    light = [*([name, "--help"] for name in OF_STORAGES), *LIGHT, ["info", "tensors"]]
    found = loaded_by([*light, ["ls", "memory://none"], *OF_ROWS])
    assert {code for code, _, _ in found} == {0}
    heavy = [some for _, _, some in found]
    assert heavy[: len(light)] == [[]] * len(light)
    assert heavy[len(light)] == ["asyncio", "fsspec"]
    assert heavy[len(light) + 1 :] == [["asyncio", "fsspec", "lmdb", "numpy"]] * len(OF_ROWS)  # no torch


def test_the_package_is_run_as_a_module(storage: yoga.Storage) -> None:
    found = process(sys.executable, "-m", "torchyoga", "ls", "storage")
    assert found.stdout == "id       versions\nimages   1.0 1.1\nnumbers  1\n"
    found = process(sys.executable, "-m", "torchyoga", "info", "nothing")
    assert found.returncode == 2
    assert found.stderr.startswith("error: there is no dataset 'nothing'")
    found = process(sys.executable, "-m", "torchyoga", "infos")
    assert found.stderr.endswith("Try 'python -m torchyoga --help'\n")


def test_the_entry_points_are_those_of_the_package() -> None:
    text = (Path(yoga.__file__).parents[1] / "setup.cfg").read_text()
    for name in ("torchyoga", "yoga"):
        assert f"\n    {name} = torchyoga.tools.commands.group:main\n" in text


# -- the page


PAGE = ROOT / "docs" / "commands.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def shown(text: str) -> str:
    """A page, or what it says, without what differs from one machine to the next."""
    text = timeless(text).replace(str(Path.cwd()), "/home/ada")
    return re.sub(r"[ ]+$", "", text, flags=re.MULTILINE)


def sizeless(text: str) -> str:
    """A page without sizes of files, which depend on pages of memory and on libraries."""
    return re.sub(r" +[\d.]+ kB", " 9 kB", text)


def page_with_what_is_printed(page: str) -> str:
    """The page, with what its commands print now."""
    names: dict[str, object] = {"__name__": "page"}
    for kind, text in BLOCK.findall(page):
        if kind == "python":
            exec(compile(text, "commands.md", "exec"), names)

    def again(block: re.Match[str]) -> str:
        if block[1] == "python":
            return block[0]
        lines = []
        for part in re.split(r"^\$ ", block[2], flags=re.MULTILINE)[1:]:
            line = part.splitlines()[0]
            found = run(*shlex.split(line)[1:])
            assert found.exit_code in (0, 1), (line, found.output)
            lines.append(f"$ {line}\n{shown(found.stdout)}")
        return f"```console\n{''.join(lines)}```"

    return BLOCK.sub(again, page)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_page_shows_what_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    monkeypatch.delenv("TORCHYOGA_STORAGE", raising=False)
    with by_ada():
        found = page_with_what_is_printed(text)
    assert sizeless(found) == sizeless(text)


def test_the_site_has_the_help_of_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "extensions")
    text = importlib.import_module("commands").text()
    for name in COMMANDS:
        assert re.search(rf"^## {name}\n\n```text\nUsage: yoga {name} ", text, re.MULTILINE), name
