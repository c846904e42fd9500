"""Progress bars are shown on terminals, and no process blocks those of another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from children import run_program

import torchyoga as yoga
from torchyoga.process.messages import progress_bar


@pytest.mark.parametrize("shown", [True, False, None])
def test_a_bar_is_shown_where_it_is_wanted(shown: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(shown, 4, "counting", " sheep", initial=1) as bar:
        bar.update()
        bar.update(2)
    shown_text = capsys.readouterr().err
    assert ("counting: 100%" in shown_text and "4/4" in shown_text) is bool(shown)


# In a process of its own: any process that shares the lock with which its child dies would wait for ever.
HELD_UP = """
from becoming import leave
import os, signal, sys
from tqdm import tqdm
import torchyoga as yoga

root, progress = sys.argv[1], sys.argv[2] == "True"
storage = yoga.Storage(root + "/storage")
storage.submit([1, 2], "a", "1", progress=progress)
tqdm(disable=True)  # makes the lock, if there is none yet
child = os.fork()
if child == 0:
    tqdm.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
signal.alarm(60)
storage.submit([1, 2], "a", "2", progress=progress)
storage.copy("a", "2", yoga.Storage(root + "/copy"), progress=progress)
child = os.fork()
if child == 0:
    storage.submit([1, 2], "a", "3", progress=progress)
    leave(0)
assert os.waitpid(child, 0)[1] == 0
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_the_bar_of_a_build_has_the_names_of_the_version(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    storage = yoga.Storage(tmp_path)
    ref = storage.submit([1, 2], "photos", "1", progress=True)
    storage.submit(ref, "photos", "2", progress=True)
    storage.append([3], "photos", "3", after="2", progress=True)
    shown = capfd.readouterr().err
    assert all(f"photos {version}:" in shown for version in "123"), shown
    assert "list:" not in shown
    assert "VersionRef" not in shown


@pytest.mark.parametrize("progress", [True, False])
def test_a_killed_process_does_not_block_others(progress: bool, tmp_path: Path) -> None:
    """Tqdm has one lock for all forked processes, and its holder may be killed."""
    finished = run_program(HELD_UP, str(tmp_path), str(progress))
    assert (finished.returncode, finished.stdout) == (0, "done\n"), finished.stderr
