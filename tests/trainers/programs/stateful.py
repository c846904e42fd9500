"""torchdata's StatefulDataLoader over our sampler: its own state is the checkpoint."""

from __future__ import annotations

from common import Rows, task_of
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]
from torchdata_loop import train

import torchyoga as yoga


def main() -> None:
    task = task_of()
    rows = Rows(task.length, noise=False)
    sampler = yoga.ResumableSampler(rows, seed=task.seed, remainder=task.remainder)
    loader = StatefulDataLoader(rows, sampler=sampler, **task.torch_arguments())
    train(task, loader, sampler)


if __name__ == "__main__":
    main()
