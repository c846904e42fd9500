"""torchdata.nodes over our sampler."""

from __future__ import annotations

from typing import Any

from common import Rows, task_of
from torch.utils.data import default_collate
from torchdata import nodes  # type: ignore[import-untyped]
from torchdata_loop import train

import torchyoga as yoga


def main() -> None:
    task = task_of()
    rows = Rows(task.length, noise=False)

    def fetch(numbers: list[int]) -> Any:
        return default_collate([rows[number] for number in numbers])

    sampler = yoga.ResumableSampler(rows, seed=task.seed, remainder=task.remainder)
    numbers = nodes.Batcher(nodes.SamplerWrapper(sampler), task.batch_size, drop_last=task.drop_last)
    loader: Any = nodes.Loader(
        nodes.ParallelMapper(numbers, fetch, task.workers, in_order=task.in_order, method="thread")
        if task.workers
        else nodes.Mapper(numbers, fetch)
    )
    train(task, loader, sampler)


if __name__ == "__main__":
    main()
