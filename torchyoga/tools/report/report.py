"""A dataset -> a file with its page."""

from __future__ import annotations

import os
from pathlib import Path

from ...order.full import as_int
from ...reading.dataref import DataRef
from .page import page_of

__all__ = ["report"]


def report(
    ref: DataRef,
    path: str | os.PathLike[str] = "report.html",
    *,
    order: object = None,
    meter: object = None,
    title: str | None = None,
    seed: int = 0,
) -> Path:
    """Writes a page that shows what is in a dataset: one file under 2 MB, which works offline.

    It shows columns with their histograms, lengths, how even classes are, 64 rows drawn at random with
    thumbnails of images, files, how the version was made, and its log. The statistics are those that a
    version keeps; of others up to 10,000 rows are read. Nothing in the data can run or load anything, and the
    same version gives the same bytes. Thumbnails need Pillow. See docs/report.md.

    Args:
        ref: a version or any other DataRef.
        path: the file to write; it is replaced.
        order: a loader or sampler, whose order of one epoch is drawn; its state does not change.
        meter: of a loader, to be shown, too.
        title: of the page; by default id and version.
        seed: of the rows that are drawn.

    Returns:
        The path.

    Raises:
        TypeError: `ref` is not a DataRef, or `order` is not a loader or sampler.
        CorruptError: the version is damaged.

    Example:
        >>> ref = storage.submit([{"x": n, "label": n % 3} for n in range(99)], "shown", "1.0")
        >>> path = yoga.report(ref, tmp_path / "report.html", order=DataLoader(ref, shuffle=True, seed=7))
        >>> "Histogram of x" in path.read_text(encoding="utf-8")
        True
    """
    if not isinstance(ref, DataRef):
        raise TypeError(
            f"report takes a DataRef, found {type(ref).__name__}; fetch a version, or wrap data of your own "
            "with from_arrays or storage.submit"
        )
    text = page_of(ref, order, meter, title, as_int("seed", seed, low=0))
    target = Path(path)
    part = target.with_name(f".{target.name[:80]}-{os.getpid()}.part")  # renamed, so that nobody reads half
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return target
