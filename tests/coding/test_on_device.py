"""Images are decoded on a device as they are on the processor."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoders import file_of
from PIL import Image
from sklearn.datasets import load_sample_image

import torchyoga as yoga
from torchyoga.coding import images, libraries
from torchyoga.coding.pictures import Header, decode, header, turned
from torchyoga.errors import CorruptError, SchemaError

CHINA = np.array(load_sample_image("china.jpg"))[:120, :161]
HERE = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def by_the_processor(values: list[memoryview], is_gray: bool) -> list[torch.Tensor | None]:
    """Stands where a library for CUDA does."""
    return [torch.from_numpy(decode(value, header(value), is_gray)).permute(2, 0, 1) for value in values]


@pytest.mark.parametrize("turn", range(1, 9))
def test_parts_are_turned_and_cut_as_on_the_processor(turn: int) -> None:
    pixels = np.ascontiguousarray(CHINA)
    seen = turned(pixels, turn)
    box = np.array([10, 20, 50, 60])
    part = images.part_on(torch.from_numpy(pixels).permute(2, 0, 1), turn, box, (50, 60))
    assert np.array_equal(part.permute(1, 2, 0), seen[10:60, 20:80])


@pytest.mark.parametrize("size", [(30, 40), (100, 90), (7, 200)])
def test_parts_are_resized_with_antialiasing(size: tuple[int, int]) -> None:
    pixels = np.ascontiguousarray(CHINA)
    found = images.part_on(
        torch.from_numpy(pixels).permute(2, 0, 1), 1, np.array([0, 0, *pixels.shape[:2]]), size
    )
    by_pillow = Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR)
    apart = np.abs(found.permute(1, 2, 0).numpy().astype(int) - np.asarray(by_pillow).astype(int))
    assert apart.max() <= 1


def test_what_is_no_plain_jpeg_is_decoded_on_the_processor() -> None:
    seen: list[int] = []

    def batch(values: list[memoryview], is_gray: bool) -> list[torch.Tensor | None]:
        seen.append(len(values))
        return [None, *by_the_processor(values[1:], is_gray)]  # the first has failed

    whole = file_of(CHINA)
    files = [whole, whole, file_of(CHINA, "PNG"), file_of(Image.fromarray(CHINA).convert("CMYK"))]
    files += [whole[: len(whole) // 2], whole]
    values = [memoryview(one) for one in files]
    headers: list[Header | None] = [*map(header, values)]
    headers[-1] = None
    found = images.pixels_on(HERE, batch, values, headers, False)
    assert seen == [2]
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert isinstance(found[4], CorruptError)
    for i in range(4):
        pixels = found[i]
        expected = np.asarray(Image.open(io.BytesIO(files[i])).convert("RGB"))
        assert np.array_equal(pixels.permute(1, 2, 0), expected)


def test_what_is_lost_on_the_processor_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchyoga.coding.images.decoder_on", lambda device: by_the_processor)
    depth = np.full((9, 9), 1500, np.uint16)
    files = [file_of(CHINA), file_of(depth, "PNG"), file_of(CHINA, "PNG")]
    rows = [{"image": file} for file in files]
    ref = yoga.Storage(tmp_path).submit(rows, "a", "1")
    view = ref.decoded({"image": replace(yoga.codecs.image(size=8), device="cpu")})  # type: ignore[type-var]
    text = r"row 1, column 'image': its pixels have 16 bits a channel, of which 8 are kept"
    with pytest.warns(UserWarning, match=text) as heard:
        assert [row["image"].shape for row in view.take(np.arange(3))] == [(8, 8, 3)] * 3
    assert len(heard) == 1
    noted = yoga.Storage(tmp_path).submit([{"image": depth}], "b", "1", codecs={"image": yoga.codecs.png()})
    kept = noted.decoded({"image": replace(yoga.codecs.image(size=8), device="cpu")})  # type: ignore[type-var]
    assert (kept[0]["image"] == 1500).all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what to do where there is no CUDA device")
def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    ref = yoga.Storage(tmp_path).submit([{"image": file_of(CHINA)}], "a", "1")
    with pytest.raises(RuntimeError, match="leave device out"):
        ref.decoded({"image": yoga.codecs.image(size=8, device="cuda")})[0]
    assert yoga.codecs.available()["jpeg on cuda"] == []
    with pytest.raises(SchemaError, match="of the same CUDA as torch"):
        libraries.library("jpeg on cuda")


@needs_cuda
@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_batches_decoded_on_cuda(layout: Any, tmp_path: Path) -> None:
    pytest.importorskip("torchcodec.decoders")
    batch = images.decoder_on(torch.device("cuda"))
    files = [file_of(np.roll(CHINA, 9 * n, 1), quality=95) for n in range(8)]
    values = [memoryview(one) for one in files]
    headers: list[Header | None] = [*map(header, values)]
    found = images.pixels_on(torch.device("cuda"), batch, values, headers, False)
    for i, file in enumerate(files):
        pixels = found[i]
        expected = np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).astype(int)
        assert np.abs(pixels.permute(1, 2, 0).cpu().numpy().astype(int) - expected).mean() < 2
    ref = yoga.Storage(tmp_path).submit([{"image": file} for file in files], "a", "1")
    options: dict[str, Any] = {"size": 64, "crop": "random", "flip": True, "layout": layout}
    there = ref.decoded({"image": yoga.codecs.image(**options, device="cuda")})
    here = ref.decoded({"image": yoga.codecs.image(**options)})
    for one, other in zip(
        yoga.DataLoader(there, 4, shuffle=True, seed=1, device="cuda"),
        yoga.DataLoader(here, 4, shuffle=True, seed=1),
        strict=True,
    ):
        assert one["image"].shape == other["image"].shape
        assert (one["image"].cpu().float() - other["image"].float()).abs().mean() < 4
