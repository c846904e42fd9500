"""A user's command, run as it is -> its exit code, and what was found in its processes when they ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .diagnosis import PROGRAM, Diagnosis, Finding

FOLDER, SECONDS = "TORCHYOGA_DOCTOR", "TORCHYOGA_DOCTOR_SECONDS"  # variables of a watched program
_OF_TERMINALS = ("SIGINT", "SIGHUP", "SIGQUIT", "SIGCONT", "SIGWINCH")
_PASSED = (*_OF_TERMINALS, "SIGTERM", "SIGUSR1", "SIGUSR2")
_TWICE_SECONDS = 0.2
_BY_SIGNAL = 128


def ran(command: Sequence[str], seconds: float) -> tuple[int, Diagnosis]:
    """Runs a command with this process's input, output and signals, and waits for its end.

    Returns:
        Its exit code, which is 128 and the number of the signal if one has ended it, as in shells; and what
        was found in all its processes.

    Raises:
        FileNotFoundError, PermissionError: there is no such program.
    """
    with tempfile.TemporaryDirectory(prefix="torchyoga-doctor-") as folder:
        environment = {**os.environ, FOLDER: folder, SECONDS: str(seconds)}
        code = _waited_for(command, environment)
        reports = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    return code, _together(reports)


def _waited_for(command: Sequence[str], environment: dict[str, str]) -> int:
    has_terminal, sent = _has_terminal(), dict[int, float]()
    is_apart = not has_terminal and hasattr(os, "setpgrp")
    process = subprocess.Popen(command, env=environment, preexec_fn=os.setpgrp if is_apart else None)

    def pass_on(number: int, frame: object) -> None:
        # Others signal a process and then its group; a terminal signals the program, too.
        is_new = time.monotonic() - sent.get(number, 0.0) > _TWICE_SECONDS
        sent[number] = time.monotonic()
        if is_new and not (has_terminal and signal.Signals(number).name in _OF_TERMINALS):
            process.send_signal(number)

    numbers = [getattr(signal, name) for name in _PASSED if hasattr(signal, name)]
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else _BY_SIGNAL - code


def _has_terminal() -> bool:
    """True if a terminal signals this process's group, so that the program has to be in it."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _together(reports: list[dict[str, Any]]) -> Diagnosis:
    parts = [
        Diagnosis([Finding(**one) for one in plain["findings"]], plain["measured"], plain["left_out"])
        for report in reports
        for plain in report.get("diagnoses", [])
    ]
    notes: dict[str, str] = {}
    if not reports:
        notes[PROGRAM] = (
            "no process of it has reported: it must `import torchyoga`, and end without being killed"
        )
    elif not any(report["loaders"] for report in reports):
        notes[PROGRAM] = "no loader was iterated: there was none, or nothing was left to do"
    for report in reports:
        if "error" in report:
            notes[f"process {report['process']}"] = report["error"]
    parts.append(Diagnosis(_of_ranks(reports), {}, notes))
    together = Diagnosis.together(parts)
    proved = {(one.name, one.loader) for one in together.findings if one.severity == "wrong"}
    kept = [
        one
        for one in together.findings
        if one.severity != "maybe" or not proved & {(one.name, one.loader), (one.name, "")}
    ]
    return Diagnosis(kept, together.measured, together.left_out)


def _of_ranks(reports: list[dict[str, Any]]) -> list[Finding]:
    """Findings about the rows that ranks which ran together begin with, loader by loader."""
    if len(reports) < 2:
        return []
    from .sharding import alike

    findings: list[Finding] = []
    loaders = [*zip(*(report["loaders"] for report in reports), strict=False)]
    for ranks in loaders:
        same = Diagnosis([*alike([one["rows"] for one in ranks], any(one["must_differ"] for one in ranks))])
        findings += (same.of(ranks[0]["name"]) if len(loaders) > 1 else same).findings
    return findings
