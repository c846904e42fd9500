"""Something that slows down or spoils training: what was measured, why it hurts, the line to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["SEVERITIES", "Finding", "Severity"]

Severity = Literal["wrong", "slow", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # the worst first


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor has found.

    Attributes:
        name: of its kind, such as `few-cpus`; it stays the same over releases.
        measured: what was measured, with units.
        why: why it hurts.
        change: the one line to change, or the command to run.
        severity: `wrong` if rows may be wrong, missing or never come; `slow` if training waits; `note` if it
            may matter, or will on another system.
    """

    name: str
    measured: str
    why: str
    change: str
    severity: Severity

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity must be one of {SEVERITIES}, found {self.severity!r}")
