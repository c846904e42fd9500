"""Modules that are loaded when they are used."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from torchyoga.process.lazy import later, methods_of


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


def test_a_method_that_is_found_later_is_the_one_that_super_asks_for() -> None:
    class Numbers(list):  # type: ignore[type-arg]
        mean = methods_of("statistics").mean

    class Doubled(Numbers):
        calls = 0

        def mean(self) -> object:
            self.calls += 1
            return 2 * super().mean()  # type: ignore[operator]

    numbers = Doubled([1, 3])
    assert [numbers.mean(), numbers.mean()] == [4, 4]
    assert numbers.calls == 2


LATER = """
import sys
from torchyoga.process.lazy import once_loaded
def then(module): print(module.__name__, hasattr(module, "rgb_to_hsv"))
once_loaded("colorsys", then)
once_loaded("none.such", then)
finders = len(sys.meta_path)
import email.message
import colorsys
print(finders - len(sys.meta_path))
once_loaded("colorsys", then)
try: import none.such
except ModuleNotFoundError as error: print(error.name)
"""


def test_what_waits_for_a_module_is_called_once_that_is_loaded() -> None:
    finished = subprocess.run([sys.executable, "-c", LATER], capture_output=True, text=True, timeout=60)
    wanted = ["colorsys True", "1", "colorsys True", "none"]
    assert finished.stdout.splitlines() == wanted, finished.stdout + finished.stderr
