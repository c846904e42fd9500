"""Keras on each of its backends, in a process for each, because Keras chooses one when it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("keras_suite.py")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_the_suite_passes(backend: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(SUITE)]
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1700)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
