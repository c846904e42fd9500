"""ArrayRecord by its own map-style dataset: the loader and `submit` read batches of records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from interrupting import calls_of

import torchyoga as yoga
from torchyoga.testing import check_resume

pytest.importorskip("array_record")

ROWS = [bytes([n % 251]) * (n % 40) for n in range(200)]
# A process that has written such files cannot fork others that read some.
WRITE = """
import sys
from array_record.python.array_record_module import ArrayRecordWriter
for number, (start, stop) in enumerate([(0, 130), (130, 200)]):
    writer = ArrayRecordWriter(f"{sys.argv[1]}/{number}.array_record", "group_size:1")
    for n in range(start, stop):
        writer.write(bytes([n % 251]) * (n % 40))
    writer.close()
"""


def test_loader_and_submit_take_its_dataset(tmp_path: Path) -> None:
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    subprocess.run([sys.executable, "-c", WRITE, str(tmp_path)], check=True, timeout=60)
    records = ArrayRecordDataSource(sorted(map(str, tmp_path.glob("*.array_record"))))
    with calls_of(ArrayRecordDataSource.__getitems__) as calls:
        check_resume(lambda: yoga.DataLoader(records, 16, shuffle=True, seed=7), 4)
    assert {len(list(call["record_keys"])) for call in calls} == {16, 200 % 16}
    loader = yoga.DataLoader(records, 32, shuffle=True, num_workers=2, multiprocessing_context="forkserver")
    assert sorted(row for batch in loader for row in batch) == sorted(ROWS)
    assert list(yoga.Storage(tmp_path / "storage").submit(records, "records", "1.0", progress=False)) == ROWS
