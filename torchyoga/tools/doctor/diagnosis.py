"""Checks of the doctor, and what they find: what was measured, why it hurts, the line to change."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from ...process.messages import count_of

if TYPE_CHECKING:
    from .patient import Patient  # which loads torch

Severity = Literal["wrong", "slow", "maybe"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # the worst first
NO_LOADER, PROGRAM = "a loader", "the program"  # what was left out where no loader was examined
_WIDTH, _LEAST_WIDTH = 80, 40
_INDENT, _MOST_INDENT = 12, 24


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor has found.

    Attributes:
        name: of its kind, such as `few-cpus`; it stays the same over releases.
        measured: what was measured, with units.
        why: why it hurts.
        change: the one line to change, or the command to run.
        severity: `wrong` if it is proved: rows that are equal and should differ, an error that was raised, a
            deadlock that was waited for, an epoch without a batch; `slow` if training was measured to wait;
            `maybe` for everything else.
        loader: the name of its loader, where a program has several.
    """

    name: str
    measured: str
    why: str
    change: str
    severity: Severity
    loader: str = ""

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity must be one of {SEVERITIES}, found {self.severity!r}")


class Measured(NamedTuple):
    """Something that was measured, whether it is good or bad."""

    name: str
    text: str


Seen = Mapping[str, Any]  # what was measured, by the names of checks


class Check(NamedTuple):
    """Something to measure, and to judge.

    Attributes:
        name: of what is measured.
        needs: True for a patient of which it is measured.
        measure: returns facts that JSON has, or None. It is called in a child process of its own, and should
            take no longer than the seconds that it is given.
        judge: what these facts, and the facts of other checks, say of the patient.
        in_workers: it starts workers, which takes its time.
    """

    name: str
    needs: Callable[[Patient], bool]
    measure: Callable[[Patient, float], Any]
    judge: Callable[[Patient, Any, Seen], Iterable[Finding | Measured]]
    in_workers: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """The result of `yoga.doctor`. True if nothing was found.

    Attributes:
        findings: the worst first.
        measured: what was measured, by name, whether it is good or bad.
        left_out: what was not looked at, by name, and why.

    Example:
        >>> print(Diagnosis([Finding("few-cpus", "1 of 8 CPUs", "They wait.", "num_workers=1", "slow")]))
        1 finding
        <BLANKLINE>
        slow: few-cpus
          measured  1 of 8 CPUs
          why       They wait.
          change    num_workers=1
    """

    findings: list[Finding]
    measured: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ordered = sorted(self.findings, key=lambda one: SEVERITIES.index(one.severity))
        object.__setattr__(self, "findings", ordered)

    def __bool__(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = _WIDTH) -> str:
        """All of it, in lines no longer than `width` characters, except where one word is longer."""
        width = max(width, _LEAST_WIDTH)
        said = [count_of(len(self.findings), "finding")] if self.findings else []
        if {NO_LOADER, PROGRAM} & self.left_out.keys():
            said.append("no loader was examined")
        lines = ["; ".join(said) or "nothing was found"]
        for one in self.findings:
            lines += ["", f"{one.severity}: {one.name}" + (f" ({one.loader})" if one.loader else "")]
            for title in ("measured", "why", "change"):
                lines += _entry(title, getattr(one, title), width)
        for title, entries in (("measured", self.measured), ("not looked at", self.left_out)):
            if entries:
                lines += ["", title]
                indent = min(max(map(len, entries)), _MOST_INDENT) + 4
                for name, text in entries.items():
                    lines += _entry(name, text, width, indent)
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        """All of it as plain data, for JSON."""
        return asdict(self)

    def of(self, loader: str) -> Diagnosis:
        """The same with the name of its loader at all that it says."""
        measured = {f"{loader}: {name}": text for name, text in self.measured.items()}
        left_out = {f"{loader}: {name}": text for name, text in self.left_out.items()}
        return Diagnosis([replace(one, loader=loader) for one in self.findings], measured, left_out)

    @staticmethod
    def together(parts: list[Diagnosis]) -> Diagnosis:
        """One of several, with what is in more than one of them once."""
        every = {
            (one.name, one.change, one.loader): one for part in parts[::-1] for one in part.findings[::-1]
        }
        measured = {name: text for part in parts[::-1] for name, text in part.measured.items()}
        left_out = {name: text for part in parts[::-1] for name, text in part.left_out.items()}
        if not all(NO_LOADER in part.left_out for part in parts):
            left_out.pop(NO_LOADER, None)
        return Diagnosis([*every.values()][::-1], measured, left_out)


def _entry(name: str, text: str, width: int, indent: int = _INDENT) -> list[str]:
    """A name and what is said about it, in a column of its own."""
    title = f"  {name}".ljust(indent)
    return textwrap.wrap(
        " ".join(text.split()),
        width,
        initial_indent=title if title.endswith("  ") else f"{title}  ",
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
