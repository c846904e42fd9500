"""The pages and modules whose examples run, and how."""

from __future__ import annotations

import doctest
import importlib.util
import os
import pickle
import pkgutil
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lmdb
import numpy as np
from own import Squares

import torchyoga

ROOT = Path(__file__).parents[1]
# Tutorials are notebooks as well, which a build of the site runs; see test_site.py.
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def _text_of(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


_PAGES = [*(ROOT / f"{name}.md" for name in ("README", "FORMAT", "CHANGELOG"))]
_PAGES += [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "howto").glob("*.md")), *TUTORIALS]
_MODULES = ["torchyoga", *(info.name for info in pkgutil.walk_packages(torchyoga.__path__, "torchyoga."))]
# These load TensorFlow or Keras, and run in frameworks/, or trainers, and run in trainers/, or need a store,
# and run in remote/.
FRAMEWORK_PAGES = [ROOT / "docs" / "frameworks.md"]
TRAINER_PAGES = [ROOT / "docs" / "trainers.md"]
REMOTE_PAGES = [ROOT / "docs" / "remote.md"]
# Those whose blocks start a server and processes: they run as a notebook only, in a process of its own.
NOTEBOOK_PAGES = [ROOT / "docs" / "tutorials" / "cluster.md"]
FRAMEWORK_MODULES = [
    "torchyoga.adapters.keras",
    "torchyoga.adapters.tensorflow",
    "torchyoga.compat.yogadl.tensorflow",
]
TRAINER_MODULES = ["torchyoga.adapters.lightning"]
_APART = FRAMEWORK_PAGES + TRAINER_PAGES + REMOTE_PAGES + NOTEBOOK_PAGES
PAGES = [page for page in _PAGES if page not in _APART]
# The programs in examples/, by what they need: a backend of Keras, trainers or a store, with a pattern of
# their output.
FRAMEWORK_EXAMPLES = {
    "keras_from_tfdata": "tensorflow",
    "torch_from_keras_sequence": "torch",
    "custom_dataref": "torch",
    "views": "torch",
    "language_model": "torch",
}
TRAINER_EXAMPLES = {
    "ddp_resume": r"epoch 0: 1797 of 1797 rows delivered since it began( \(.*?\))?, each once; filled up by",
    "lightning_resume": "all 141 losses are equal",
    "accelerate_resume": "all 94 losses are equal",
}
REMOTE_EXAMPLES = {"s3_training": "all 57 losses are equal"}
ENGINE_EXAMPLES = {"build_by_many": "600 rows; the same as one process gives: True"}
_APART_MODULES = FRAMEWORK_MODULES + TRAINER_MODULES
WITH_EXAMPLES = [name for name in _MODULES if name not in _APART_MODULES and ">>> " in _text_of(name)]

# What the blocks of data.md read: files that other libraries wrote, below golden/foreign.
_FOREIGN = {"old": "mds/zstd", "chunks": "litdata/numbers", "records": "tfrecord"}
_FOREIGN |= {f"corpus.{ending}": f"megatron/uint16.{ending}" for ending in ("bin", "idx")}


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def run_blocks(page: Path, **given: Any) -> None:
    """Runs the Python blocks of a page, one after the other, in the current folder; `given` are names they
    can use."""
    for name, source in _FOREIGN.items() if page.name == "data.md" else ():
        Path(name).symlink_to(ROOT / "tests" / "golden" / "foreign" / source)
    namespace: dict[str, Any] = {"__name__": "docs", **given}
    for number, code in enumerate(blocks(page, "python")):
        exec(compile(code, f"{page.name}, block {number}", "exec"), namespace)


def run_program(name: str, *arguments: str, **environment: str) -> str:
    """Runs one of examples/ in a process of its own; returns what it printed."""
    command = [sys.executable, *arguments, str(ROOT / "examples" / f"{name}.py")]
    finished = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr[-3000:]
    return finished.stdout


def run_here(name: str, **environment: str) -> None:
    """Runs one of examples/ in this process, which has imported already what it needs.

    Processes that it starts are programs of their own.
    """
    path = str(ROOT / "examples" / f"{name}.py")
    with patch.dict(os.environ, environment), patch.object(sys, "argv", [path]):
        runpy.run_path(path, run_name="__main__")


def run_examples(module: str, folder: Path) -> None:
    """Runs the examples of a module's docstrings."""
    old_cache = folder / "old.lmdb"
    if "old_cache" in _text_of(module):
        _write_as_tensorpack(old_cache)
    given = {
        "np": np,
        "yoga": torchyoga,
        "tmp_path": folder,
        "DataLoader": torchyoga.DataLoader,
        "Squares": Squares,
        "storage": torchyoga.Storage(folder),
        "old_cache": old_cache,
    }
    assert doctest.testmod(importlib.import_module(module), extraglobs=given).failed == 0


def _write_as_tensorpack(path: Path) -> None:
    with lmdb.open(str(path), subdir=False, map_size=2**20) as env, env.begin(write=True) as file:
        keys = [b"%08d" % i for i in range(3)]
        for i, key in enumerate(keys):
            file.put(key, pickle.dumps([i, i * i]))
        file.put(b"__keys__", pickle.dumps(keys))
