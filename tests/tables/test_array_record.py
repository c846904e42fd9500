"""ArrayRecord in place: records as its own reader gives them; damaged files are errors."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError
from torchyoga.testing import check_dataref, check_resume, check_view

pytest.importorskip("array_record")

COUNTS = (130, 0, 70)
ROWS = [bytes([n % 251]) * (n % 40) for n in range(sum(COUNTS))]
# A process that has written such files cannot fork others that read some.
WRITE = """
import sys
from array_record.python.array_record_module import ArrayRecordWriter
first = 0
for number, count in enumerate((130, 0, 70)):
    writer = ArrayRecordWriter(f"{sys.argv[1]}/{number}.array_record", f"group_size:{sys.argv[2]}")
    for n in range(first, first + count):
        writer.write(bytes([n % 251]) * (n % 40))
    writer.close()
    first += count
"""


@pytest.fixture(params=["1", "8"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    subprocess.run([sys.executable, "-c", WRITE, str(tmp_path), request.param], check=True, timeout=60)
    return sorted(tmp_path.glob("*.array_record"))


def test_kits_views_and_resumes(files: list[Path], tmp_path: Path) -> None:
    ref = yoga.from_arrayrecord(files)
    assert list(ref) == ROWS
    assert [ref[n] for n in (129, 130, 199)] == [ROWS[n] for n in (129, 130, 199)]
    assert ref.file_starts.tolist() == [0, 130, 130, 200]
    check_dataref(ref)
    check_view(lambda base: base[3:], ref, workers=2)
    check_resume(lambda: yoga.DataLoader(ref, 16, shuffle="block", seed=7), 4)
    assert ref.map(len)[57] == 17
    assert pickle.loads(pickle.dumps(ref)).fingerprint == yoga.from_arrayrecord(files).fingerprint
    assert list(yoga.Storage(tmp_path / "storage").submit(ref, "records", "1.0")) == ROWS
    loader = yoga.DataLoader(ref, 32, shuffle=True, num_workers=2)
    assert sorted(row for batch in loader for row in batch) == sorted(ROWS)


def test_flipped_bits_are_errors(files: list[Path]) -> None:
    sound = files[0].read_bytes()
    used = np.flatnonzero(np.frombuffer(sound, np.uint8))
    rng = np.random.default_rng(0)
    refused = 0
    for byte in rng.choice(used, 150).tolist():
        damaged = bytearray(sound)
        damaged[byte] ^= 1 << int(rng.integers(8))
        files[0].write_bytes(damaged)
        try:
            found = list(yoga.from_arrayrecord(files[0]))
        except CorruptError:
            refused += 1
            continue
        assert found == ROWS[:130]  # it was in what is not looked at
    assert refused > 75
    for size in (0, 1, 100, len(sound) - 1):
        files[0].write_bytes(sound[:size])
        with pytest.raises(CorruptError, match=r"is not a file of ArrayRecord|cannot be read"):
            list(yoga.from_arrayrecord(files[0]))


def test_files_that_changed_or_are_not_there(files: list[Path], tmp_path: Path) -> None:
    ref = yoga.from_arrayrecord(files)
    blob = pickle.dumps(ref)
    files[2].write_bytes(files[0].read_bytes())
    with pytest.raises(CorruptError, match=r"2\.array_record has changed since this was opened"):
        pickle.loads(blob)[150]
    with pytest.raises(NotFoundError, match=r"there is no file .*nowhere"):
        yoga.from_arrayrecord(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="was given no files"):
        yoga.from_arrayrecord([])
    with pytest.raises(ValueError, match="is a URL; copy it"):
        yoga.from_arrayrecord("gs://bucket/x.array_record")
