"""A process that does not rely on counts of references; loading/test_shared_memory.py runs it."""

from __future__ import annotations

import numpy as np
import torch
from loading.loops import ring_of

import torchyoga as yoga
from torchyoga.process.buffers import BufferPool, address_of, counts_can_be_trusted


def main() -> None:
    """Raises AssertionError if memory is used again while something might still hold it."""
    assert not counts_can_be_trusted()
    pool = BufferPool()
    pool.empty(2**20)[:] = 1
    assert not pool._kept

    rows = np.repeat(np.arange(84, dtype=np.int32)[:, None], 10_000, 1)
    for workers in (0, 2):
        for _ in range(2):
            loader = yoga.DataLoader(yoga.from_arrays({"x": rows}), 2, num_workers=workers)
            batches, exports = [], []
            for batch in loader:
                batches.append(batch["x"])
                exports.append(torch.utils.dlpack.to_dlpack(batch["x"]))
                ring = ring_of(loader)
                if ring is not None:
                    for slot in ring.slots:
                        assert slot is not None
                        assert not 0 <= batch["x"].data_ptr() - address_of(slot) < slot.size
                    assert ring.send() >= 0  # there is always a free slot
                    ring._sent.pop()
            assert [batch[:, 0].tolist() for batch in batches] == [[2 * i, 2 * i + 1] for i in range(42)]
            assert len({batch.data_ptr() for batch in batches}) == 42


if __name__ == "__main__":
    main()
