"""Modules that are loaded when they are used."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from torchyoga.process.lazy import later


def test_attributes_are_those_of_the_module_and_found_once() -> None:
    stand_in = later("numpy")
    assert stand_in.float32 is np.float32  # type: ignore[attr-defined]
    assert "float32" in vars(stand_in)
    with pytest.raises(AttributeError, match="no attribute 'flot32'"):
        stand_in.flot32  # type: ignore[attr-defined]  # noqa: B018
    assert "numpy, when it is used" in repr(stand_in)


def test_it_is_loaded_at_the_first_use() -> None:
    code = "import sys; from torchyoga.process.lazy import later; m = later('colorsys')\n"
    code += "print('colorsys' in sys.modules, m.rgb_to_hsv(0, 0, 0), 'colorsys' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert finished.stdout.split()[0::4] == ["False", "True"], finished.stdout + finished.stderr
