"""What all tests share: deterministic hypothesis runs, and the real digits."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("torchyoga", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("torchyoga")

MNIST = Path(__file__).parents[2] / "shared" / "data" / "mnist"


@pytest.fixture(scope="session")
def mnist() -> tuple[np.ndarray, np.ndarray]:
    """10,000 real images (N, 28, 28) of uint8 and their labels (N,)."""
    if not MNIST.is_dir():
        pytest.skip("the MNIST files are not beside this checkout")
    images = gzip.decompress((MNIST / "t10k-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((MNIST / "t10k-labels-idx1-ubyte.gz").read_bytes())
    return np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28), np.frombuffer(
        labels, np.uint8, offset=8
    )
