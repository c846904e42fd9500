"""A version that was just published -> what its command says about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .output import bytes_text, write

if TYPE_CHECKING:
    from ...reading.dataref import DataRef
    from ...storage import Storage

__all__ = ["write_published"]


def write_published(storage: Storage, ref: DataRef, as_json: bool) -> None:
    """Prints id, version, rows and bytes of a version of a storage."""
    from ...reading.version_ref import VersionRef

    assert isinstance(ref, VersionRef), "a storage gives its versions"
    manifest = ref.manifest
    plain = {
        "storage": storage.url,
        "id": manifest.id,
        "version": manifest.version,
        "rows": manifest.num_rows,
        "bytes": manifest.nbytes,
        "fingerprint": manifest.fingerprint,
    }
    size = bytes_text(manifest.nbytes)
    where = f"{manifest.id} {manifest.version} in {storage.url}"
    write(plain, as_json, f"{where}: {manifest.num_rows:,} rows, {size}")
