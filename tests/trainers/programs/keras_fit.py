"""Keras 3 on the torch backend."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"

from typing import Any

import keras
import torch
from common import Log, inputs_and_targets, leave, make_loader, task_of


class Model(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.last(self.layer(inputs["x"]))[:, 0]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        self.zero_grad()
        loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        loss.backward()
        with torch.no_grad():
            self.optimizer.apply([v.value.grad for v in self.trainable_weights], self.trainable_weights)
        return {"loss": loss.item(), "rows": x["row"]}


class Stop(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, lines: Log, loader: Any) -> None:
        super().__init__()
        self.lines, self.loader, self.epoch = lines, loader, 0

    def stop_if_due(self) -> None:
        if self.lines.due:
            weights = [v.numpy() for v in [*self.model.weights, *self.model.optimizer.variables]]
            torch.save({"weights": weights, "loader": self.loader.state_dict()}, self.lines.task.checkpoint)
            leave()

    def on_train_begin(self, logs: Any = None) -> None:
        self.stop_if_due()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.lines.step(self.epoch, logs["rows"], logs["loss"])
        self.stop_if_due()


def main() -> None:
    task = task_of()
    keras.utils.set_random_seed(0)
    log, loader = Log(task), make_loader(task)
    loader.collate_fn = inputs_and_targets
    model = Model()
    model({"x": torch.zeros(1, 8)})
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.optimizer.build(model.trainable_variables)
    first = 0
    if task.resume:
        saved = torch.load(task.checkpoint, weights_only=False)
        for variable, value in zip(
            [*model.weights, *model.optimizer.variables], saved["weights"], strict=True
        ):
            variable.assign(value)
        loader.load_state_dict(saved["loader"])
        first = saved["loader"]["epoch"]
    model.fit(loader, epochs=task.epochs, initial_epoch=first, callbacks=[Stop(log, loader)], verbose=0)
    log.done()


if __name__ == "__main__":
    main()
