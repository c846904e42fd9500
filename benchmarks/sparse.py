"""Versions of any size that take up no space on the disk: all of their bytes are zero, in sparse files."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from torchyoga.files.checksum import combine_crc32
from torchyoga.formats.checks import num_units, unit_bytes_of
from torchyoga.rows.schema import Schema
from torchyoga.versions.columns import fingerprint_of
from torchyoga.versions.file_entry import FileEntry, Listed
from torchyoga.versions.manifest import Manifest

_PAGE = 4096
_BLOCK_BYTES = 4 * 2**20


def write_sparse(root: Path, id: str, row_bytes: int, num_rows: int, num_files: int) -> None:
    """Publishes version "1" of rows {"x": zeros}, of `row_bytes` uint8 each, in LMDB-like files."""
    schema = Schema.of({"x": np.zeros(row_bytes, np.uint8)})
    folder = root / id / "1"
    folder.mkdir(parents=True)
    rows = num_rows // num_files
    most = max(1, _BLOCK_BYTES // row_bytes)
    counts = np.array([min(most, rows - first) for first in range(0, rows, most)])
    sizes = counts * row_bytes
    places = np.cumsum([_PAGE, *(-(-(sizes[:-1] + _PAGE) // _PAGE) * _PAGE)])
    unit = unit_bytes_of(row_bytes)
    zeros = {int(n): zlib.crc32(bytes(int(n))) for n in {*sizes.tolist(), *(sizes % unit).tolist(), unit}}
    units = np.full(int(num_units(sizes, unit).sum()), zeros[unit], "<u4")
    lasts = np.cumsum(num_units(sizes, unit)) - 1
    units[lasts] = [zeros[int(n % unit or unit)] for n in sizes]
    table = np.stack([counts, places, sizes, [zeros[int(n)] for n in sizes]], axis=1).astype("<i8")
    offset = int(places[-1] + sizes[-1] + _PAGE)
    tail = table.tobytes() + units.tobytes()
    index = {
        "offset": offset,
        "nbytes": table.nbytes,
        "crc32": zlib.crc32(table.tobytes()),
        "units": {"offset": offset + table.nbytes, "nbytes": units.nbytes},
    }
    whole = 0
    for n in sizes.tolist():
        whole = combine_crc32(whole, zeros[n], n)
    build, checks = "ab" * 8, ((rows * row_bytes, whole),)
    entries = []
    for number in range(num_files):
        name = f"{build}-{number:05d}.mdb"
        with open(folder / name, "wb") as file:
            file.seek(offset)
            file.write(tail)
        entries.append(FileEntry(name, "lmdb", rows, offset + len(tail), index, checks))
    fingerprint = fingerprint_of(schema, entries)
    manifest = Manifest(id, "1", build, "2026-01-01T00:00:00+00:00", schema, fingerprint, Listed(entries))
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
