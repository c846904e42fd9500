"""Random generators -> Lightning's checkpoints, which leave them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from ..checkpoint import generators
from ..sampling.ranks import Processes

_MOST_BYTES = 2**16  # of a rank's generators, as JSON


class KeepGenerators(Callback):
    """Keeps the random generators of each rank in Lightning's checkpoints, for dropout that goes on exactly.

    Lightning saves models, optimizers and loaders, but no random state: after a resume a model would drop
    other numbers than it would have. On another number of ranks, generators begin anew from the seed, the
    step and the rank, with a warning.

    Example:
        >>> trainer = Trainer(callbacks=[KeepGenerators()], logger=False)
    """

    def __init__(self) -> None:
        self._loaded: Mapping[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The generators of all ranks; Lightning asks all of them."""
        states = Processes().gathered({"generators": generators.as_json(generators.taken())}, _MOST_BYTES)
        return {"ranks": [state["generators"] for state in states], "seed": torch.initial_seed()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps them until the first batch: what comes before it may draw."""
        self._loaded = state_dict

    def on_train_batch_start(self, trainer: Trainer, *_: object) -> None:
        """Puts them back, once."""
        if self._loaded is None:
            return
        states, ranks = self._loaded["ranks"], Processes()
        if len(states) == ranks.size:
            generators.put_back(generators.from_json(states[ranks.rank]))
        else:
            generators.seed_anew(ranks, len(states), self._loaded["seed"], trainer.global_step)
        self._loaded = None
