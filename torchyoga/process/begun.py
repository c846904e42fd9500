"""Who is told of a loader when an iteration of it begins."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["watchers"]

watchers: list[Callable[[object], None]] = []  # `yoga doctor -- command` adds one
