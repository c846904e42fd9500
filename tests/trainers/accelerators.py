"""What Accelerate keeps for the process."""

from __future__ import annotations


def forget_accelerators() -> None:
    """The next accelerator is as the first of a process."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
