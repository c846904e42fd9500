"""What the control group of a process leaves it."""

from __future__ import annotations

import contextlib
import os
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from children import run_program

from torchyoga.process.control_group import folders, free_memory

MIB = 2**20


def machine(root: Path, available: int, groups: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:   {available // 1024} kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    return root


def group(folder: Path, limit: str, used: int, kept: int, is_second: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("memory.max" if is_second else "memory.limit_in_bytes")).write_text(f"{limit}\n")
    (folder / ("memory.current" if is_second else "memory.usage_in_bytes")).write_text(f"{used}\n")
    name = "inactive_file" if is_second else "total_inactive_file"
    (folder / "memory.stat").write_text(f"anon 7\n{name} {kept}\nactive_file 3\n")


@pytest.mark.parametrize("is_second", [True, False], ids=["v2", "v1"])
def test_memory_is_what_the_machine_and_all_groups_leave(is_second: bool, tmp_path: Path) -> None:
    line = "0::/pod/job\n" if is_second else "4:memory:/pod/job\n3:cpu:/x\n"
    root = machine(tmp_path, 900 * MIB, line)
    assert free_memory(root) == 900 * MIB
    base = root / "sys/fs/cgroup" / ("" if is_second else "memory")
    inner = base / "pod/job"
    group(inner, "max" if is_second else str(2**63 - 4096), 300 * MIB, 0, is_second)
    assert free_memory(root) == 900 * MIB
    group(inner.parent, str(500 * MIB), 400 * MIB, 50 * MIB, is_second)
    assert free_memory(root) == 150 * MIB, "files that nobody uses make room"
    group(inner, str(100 * MIB), 120 * MIB, 0, is_second)
    assert free_memory(root) == 0
    assert [folder for folder, _ in folders("memory", root)][:2] == [inner, inner.parent]


def test_without_linux_nothing_is_known(tmp_path: Path) -> None:
    assert free_memory(tmp_path) is None
    assert list(folders("cpu", tmp_path)) == []


@contextlib.contextmanager
def group_with(nbytes: int) -> Iterator[Path]:
    """The folder of a new group that may take so much memory; skips the test where that cannot be had."""
    root = Path("/sys/fs/cgroup/memory")
    is_first = root.is_dir()
    folder = (root if is_first else root.parent) / f"torchyoga-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (folder / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(nbytes))
        except OSError as error:
            pytest.skip(f"no limit can be set here: {error}")
        yield folder
    finally:
        end = time.monotonic() + 10  # programs leave it when they end
        while folder.is_dir() and time.monotonic() < end:
            with contextlib.suppress(OSError):
                folder.rmdir()


def test_a_process_of_a_small_group_has_less() -> None:
    with group_with(700 * MIB) as folder:
        code = f"""
        import os
        from pathlib import Path
        Path({str(folder)!r}, "cgroup.procs").write_text(str(os.getpid()))
        from torchyoga.process.control_group import free_memory
        before = free_memory()
        held = bytearray(300 * 2**20)
        print(before, free_memory())
        """
        before, after = map(int, run_program(textwrap.dedent(code)).stdout.split())
        assert 0 < before <= 700 * MIB
        assert 250 * MIB < before - after < 350 * MIB
