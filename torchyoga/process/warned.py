"""A warning -> the user's line that it is about, however many frames of trainers are between."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

# By the first part of a module's name; those of the standard library only call functions passed to them.
_OTHERS = {
    *("accelerate", "concurrent", "contextlib", "functools", "keras", "lightning", "lightning_fabric"),
    *("lightning_utilities", "pytorch_lightning", "tensorflow", "threading", "torch", "torchdata"),
    *("torchyoga", "tqdm", "transformers"),
}
_MOST_FRAMES = 1000


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns as `warnings.warn` does, about the innermost line that is neither ours nor a trainer's.

    In a thread where every line is ours or a trainer's, it is about the outermost one.
    """
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if _module(frame).partition(".")[0] not in _OTHERS or frame.f_back is None:
            break
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        _module(frame) or "<string>",
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
