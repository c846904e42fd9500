"""torchyoga's arrays, and workers that are spawned.

not: broken-rows
"""

import numpy as np

import torchyoga as yoga

ref = yoga.from_arrays({"x": np.random.default_rng(0).random((2000, 80))})
loader = yoga.DataLoader(
    ref, batch_size=8, shuffle=True, seed=1, num_workers=1, multiprocessing_context="spawn"
)
