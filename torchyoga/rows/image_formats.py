"""The formats of image files: how they begin, and how their names end.

They are the names of codecs, too.
"""

from __future__ import annotations

ENDINGS = {
    "jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "png": (".png", ".apng"),
    "webp": (".webp",),
    "tiff": (".tif", ".tiff"),
    "bmp": (".bmp", ".dib"),
    "gif": (".gif",),
    "ppm": (".ppm", ".pgm", ".pbm", ".pnm"),
    "avif": (".avif", ".avifs"),
    "jpeg2000": (".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx"),
}
HEAD = 64  # bytes of a file that show its format
_SIGNS = {
    "jpeg": (b"\xff\xd8\xff",),
    "png": (b"\x89PNG\r\n\x1a\n",),
    "gif": (b"GIF8",),
    "bmp": (b"BM",),
    "tiff": (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+"),
    # The second is without the boxes around it.
    "jpeg2000": (b"\x00\x00\x00\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51"),
}


def format_of(data: bytes | memoryview) -> str | None:
    """The format that the first bytes of a file show, a key of `ENDINGS`; None if it is none of them.

    Example:
        >>> format_of(b"GIF89a"), format_of(b"a text")
        ('gif', None)
    """
    begin = bytes(data[:HEAD])
    for name, signs in _SIGNS.items():
        if begin.startswith(signs):
            return name
    if begin[:1] == b"P" and begin[1:2] in b"123456" and begin[2:3] in (b" ", b"\t", b"\r", b"\n", b"#"):
        return "ppm"  # of colors, grey or bits
    if begin[4:8] == b"ftyp" and (b"avif" in begin[8:] or b"avis" in begin[8:]):
        return "avif"
    return "webp" if begin[:4] == b"RIFF" and begin[8:12] == b"WEBP" else None


def begins_as_image(data: bytes | memoryview) -> bool:
    """True if something of an unknown kind is an image: not of a format that texts may begin like."""
    return format_of(data) not in (None, "bmp", "ppm")
