"""Comparing rows, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ..rows.block import exact_rows
from ..rows.types import Row

PATIENCE = 300.0  # seconds for threads of a check


def assert_rows_equal(found: Row, expected: Row, where: str = "row") -> None:
    """Raises AssertionError unless both are of the same types and hold the same values, bit for bit."""
    if type(found) is not type(expected):
        raise AssertionError(f"{where}: found {type(found).__name__}, expected {type(expected).__name__}")
    if isinstance(expected, dict):
        if list(found) != list(expected):
            raise AssertionError(f"{where}: found keys {list(found)}, expected {list(expected)}")
        for key in expected:
            assert_rows_equal(found[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, (tuple, list)):
        if len(found) != len(expected):
            raise AssertionError(f"{where}: found {len(found)} items, expected {len(expected)}")
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_rows_equal(a, b, f"{where}[{i}]")
    elif _bits(found) != _bits(expected):
        raise AssertionError(f"{where}: found {found!r:.200}, expected {expected!r:.200}")


def _bits(leaf: Row) -> object:
    if isinstance(leaf, torch.Tensor):
        flat = leaf.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        data = flat.reshape(-1).view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return flat.dtype, flat.shape, data
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.dtype, leaf.shape, leaf.tobytes()
    return np.asarray(leaf).tobytes() if isinstance(leaf, (float, complex)) else leaf


def expect(is_so: bool, otherwise: str) -> None:
    """Raises AssertionError with this message unless something is so."""
    if not is_so:
        raise AssertionError(otherwise)


def expect_raised(kind: type[Exception], otherwise: str, call: Callable[[], object]) -> None:
    """Raises AssertionError with this message unless a call raises an exception of a kind."""
    try:
        call()
    except kind:
        return
    raise AssertionError(otherwise)


def compare_rows(found: Sequence[Row], numbers: Sequence[int], expected: dict[int, Row], how: str) -> None:
    """Raises AssertionError unless these are the expected rows of these numbers."""
    rows = exact_rows(found)
    expect(len(rows) == len(numbers), f"{how}: found {len(rows)} rows, expected {len(numbers)}")
    for number, row in zip(numbers, rows, strict=True):
        assert_rows_equal(row, expected[number], f"{how}: row {number}")


def run_all(threads: Sequence[threading.Thread]) -> None:
    """Runs threads to their end."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    expect(not any(thread.is_alive() for thread in threads), f"a thread has not ended in {PATIENCE:.0f} s")
