"""Values of rows as text and as thumbnails, among them hostile ones."""

from __future__ import annotations

import io
import struct
import zlib
from collections import namedtuple
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from children import run_program
from coding.decoders import file_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from torchyoga.process.messages import escaped
from torchyoga.rows.schema import Schema
from torchyoga.tools.cells.picture import SIDE, media_type, thumbnail
from torchyoga.tools.cells.text import MOST_CHARACTERS, plain_name, shown

Point = namedtuple("Point", "x y")


def seen(data: bytes | None) -> np.ndarray:
    assert data is not None
    return np.asarray(Image.open(io.BytesIO(data)))


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (None, "None"),
        (True, "True"),
        (0.1 + 0.2, "0.3"),
        (float("nan"), "nan"),
        (np.float32("inf"), "inf"),
        (np.uint8(7), "7"),
        (np.datetime64("2026-01-02"), "2026-01-02"),
        (np.array(2.5), "2.5"),
        (date(2026, 1, 2), "2026-01-02"),
        (Decimal("1.50"), "1.50"),
        (10**200, "an int of 665 bits"),
        (b"", "0 bytes"),
        (b"abc", "3 bytes: 61 62 63"),
        (bytes(1000), "1,000 bytes:" + " 00" * 16 + " …"),
        (np.zeros((0, 3)), "float64 (0, 3)"),
        (np.arange(3), "int64 (3,): 0 1 2"),
        (np.array(["a", "b\n"]), "<U2 (2,): a b\\n"),
        (torch.arange(12.0).reshape(2, 6), "float32 (2, 6): 0.0 1.0 2.0 3.0 4.0 5.0 …"),
        (torch.tensor(2), "int64: 2"),
        (torch.zeros(0, 4), "float32 (0, 4)"),
        (torch.ones(2, dtype=torch.bfloat16), "bfloat16 (2,): 1.0 1.0"),
        ({"a": [1, 2], "b": (3,)}, "{a: [1, 2], b: (3)}"),
        (Point(1, "u"), "Point(x: 1, y: u)"),
        (list(range(9)), "[0, 1, 2, 3, 4, 5, … 9 in all]"),
        ([[[[1]]]], "[[[list of 1]]]"),
        ("one\ntwo\t\x07", "one\\ntwo\\t\\x07"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800\U000e0041", "\\ud800\\U000e0041"),
        ("سلام می\u200cکند", "سلام می\u200cکند"),
        (Hostile(), "<Hostile>"),
        ({"x": Hostile()}, "{x: <Hostile>}"),
    ],
)
def test_values_are_short_plain_text(value: object, text: str) -> None:
    assert shown(value) == text


@given(st.text(), st.integers(1, 40))
def test_any_text_is_short_and_hides_nothing(text: str, most: int) -> None:
    found = shown(text, most)
    assert len(found) <= most + 1
    assert all(one.isprintable() or one.isspace() or one in "\u200c\u200d" for one in found)
    assert not {"\n", "\r", "\u2028"} & set(found)
    assert shown(text, 10**6) == text or not text.isprintable()
    found.encode()  # has no halves of characters
    assert len(escaped(text)) > most or found == escaped(text)


def test_long_texts_and_nests_are_cut() -> None:
    assert shown("x" * 10**7) == "x" * MOST_CHARACTERS + "…"
    assert len(shown([["y" * 1000] * 100] * 100)) == MOST_CHARACTERS + 1
    loop: list[object] = []
    loop.append(loop)
    assert shown(loop) == "[[[list of 1]]]"


def test_a_column_is_called_as_in_rows() -> None:
    for key in ("名 <b>", "a/b", "7", "half \ud800"):
        assert plain_name(Schema.of({key: 1}).columns[0].name) == key


@pytest.mark.parametrize("shape", [(40, 30), (40, 30, 1), (40, 30, 3), (1, 40, 30), (3, 40, 30), (40, 30, 4)])
@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_layouts_of_arrays(shape: tuple[int, ...], make: Any) -> None:
    pixels = np.zeros(shape, np.uint8)
    pixels[np.where(np.indices(shape)[0 if shape[0] == 40 else 1] < 10)] = 200  # the upper quarter is light
    found = seen(thumbnail(make(pixels)))
    assert found.shape[:2] == (40, 30)
    assert (found[:10] == 200).all()
    assert (found[10:] == 0).all()


@pytest.mark.parametrize(
    ("values", "shades"),
    [
        (np.array([0.0, 0.5, 1.0]), [0, 128, 255]),
        (np.array([-1.0, 0.0, 1.0], np.float32), [0, 128, 255]),
        (np.array([10.0, 20.0, 30.0], np.float16), [0, 128, 255]),
        (np.array([-1.7e308, 0.0, 1.7e308]), [0, 128, 255]),
        (np.array([np.nan, 0.0, 1.0]), [0, 0, 255]),
        (np.array([-np.inf, 3.0, np.inf]), [127, 127, 127]),
        (np.array([np.nan, np.nan, np.nan]), [0, 0, 0]),
        (np.array([np.inf, 2.0, 4.0]), [255, 0, 255]),
        (np.array([0, 300, 600], np.uint16), [0, 128, 255]),
        (np.array([False, True, False]), [0, 255, 0]),
    ],
)
def test_shades(values: np.ndarray, shades: list[int]) -> None:
    rows = np.repeat(values[None], 9, axis=0).repeat(3, axis=1)
    assert seen(thumbnail(rows))[0, ::3].tolist() == shades
    if values.dtype != np.uint16:
        assert seen(thumbnail(torch.from_numpy(rows)))[0, ::3].tolist() == shades


@given(
    arrays.arrays(
        st.sampled_from([np.uint8, np.uint16, np.int64, np.float16, np.float64, np.bool_, np.complex64]),
        arrays.array_shapes(max_dims=4, max_side=20),
    ),
    st.sampled_from(["image", "x"]),
)
def test_any_array_is_a_small_picture_or_none(array: np.ndarray, name: str) -> None:
    found = thumbnail(array, name)
    assert found == thumbnail(array.copy(), name)
    if found is not None:
        assert max(seen(found).shape[:2]) <= SIDE


def test_only_images_are_images() -> None:
    not_images = [
        np.zeros((4, 4)), np.zeros((100, 4), np.float32), np.zeros((20, 20), np.int64),
        np.zeros((9, 9), "c8"), np.zeros((0, 9), np.uint8), np.zeros(99, np.uint8), "image",
        3, None, b"", b"BM", b"P6 nonsense",
        b"\xff\xd8\xff" + bytes(99), torch.zeros(9, 9, device="meta"), torch.eye(9).to_sparse(),
    ]  # fmt: skip
    assert [thumbnail(value) for value in not_images] == [None] * len(not_images)
    assert seen(thumbnail(np.full((1, 1), 9, np.uint8), "image")).tolist() == [[9]]
    assert seen(thumbnail(np.eye(4, dtype=np.int64), "seg/Mask")).shape == (4, 4)


def test_large_images_become_small_ones() -> None:
    rows = np.broadcast_to(noise(1, 3000, 3), (2000, 3000, 3))
    found = thumbnail(rows)
    assert found is not None
    assert seen(found).shape == (64, 96, 3)
    assert len(found) < 8000
    assert seen(thumbnail(np.zeros((9, 30000), np.uint8))).shape == (1, 96)
    assert media_type(thumbnail(noise(300, 300, 3)) or b"") == "image/jpeg"


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_files_of_images(format: str) -> None:
    data = file_of(np.full((200, 100, 3), 100, np.uint8), format)
    for value in (data, bytearray(data), np.frombuffer(data, np.uint8)):
        found = seen(thumbnail(value))
        assert found.shape[:2] == (96, 48)
        assert abs(int(found[..., :3].mean()) - 100) < 4
    for cut in (len(data) // 3, 20):
        thumbnail(data[:cut])  # whatever it is, it is not an error


def test_files_of_sixteen_bits_of_alpha_and_turned_ones() -> None:
    ramp = np.linspace(1000, 3000, 16).astype(np.uint16)[None].repeat(16, axis=0)
    assert seen(thumbnail(file_of(ramp, "PNG")))[0, [0, -1]].tolist() == [0, 255]
    clear = np.zeros((10, 10, 4), np.uint8)
    assert seen(thumbnail(file_of(clear, "PNG"))).shape == (10, 10, 4)
    exif = Image.Exif()
    exif[0x0112] = 6
    assert seen(thumbnail(file_of(noise(10, 40, 3), "JPEG", exif=exif))).shape[:2] == (40, 10)
    assert seen(thumbnail(Image.fromarray(noise(10, 40, 3)))).shape == (10, 40, 3)


def test_a_file_that_claims_too_many_pixels_is_not_decoded() -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 50000, 50000, 8, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")
    assert thumbnail(bomb) is None
    assert thumbnail(file_of(np.zeros((6000, 6000), np.uint8), "PNG")) is None


def test_without_pillow_an_image_is_an_error_that_says_what_to_do() -> None:
    code = """
import sys
sys.modules["PIL"] = None
import numpy as np
from torchyoga.tools.cells.picture import thumbnail
assert thumbnail(np.arange(3)) is None
for image in (np.zeros((9, 9), np.uint8), b"\\x89PNG\\r\\n\\x1a\\n"):
    try:
        thumbnail(image)
    except ImportError as error:
        assert "torchyoga[report]" in str(error)
    else:
        raise SystemExit("no error")
"""
    assert run_program(code).returncode == 0
