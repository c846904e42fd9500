"""What worker processes run: a module that imports no framework, which each of them would import."""

from __future__ import annotations

import os
from typing import Any


def with_process(row: dict[str, Any]) -> dict[str, Any]:
    """A row, and the process that made it."""
    return {**row, "process": os.getpid()}
