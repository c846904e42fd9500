"""What Accelerate keeps for the process, and a trainer of Lightning."""

from __future__ import annotations

from typing import Any


def quiet_trainer(**options: Any) -> Any:
    """Lightning's trainer on the processor, which writes nothing."""
    import lightning.pytorch as lightning

    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    return lightning.Trainer(accelerator="cpu", enable_checkpointing=False, **quiet, **options)


def forget_accelerators() -> None:
    """The next accelerator is as the first of a process."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
