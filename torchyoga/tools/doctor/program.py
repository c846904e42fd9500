"""A user's command, run as it is -> its exit code, and what was found in its processes when they ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .diagnosis import PROGRAM, Diagnosis, Finding

__all__ = ["FOLDER", "SECONDS", "Ran", "ran"]

FOLDER, SECONDS = "TORCHYOGA_DOCTOR", "TORCHYOGA_DOCTOR_SECONDS"  # variables of a watched program
_PASSED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
_LOOK_SECONDS, _TWICE_SECONDS = 0.5, 0.2
_NOT_FOUND, _BY_SIGNAL = 127, 128


class Ran(NamedTuple):
    """The result of a command.

    Attributes:
        code: its exit code; 128 and the number of the signal if one has ended it, as in shells.
        diagnosis: what was found in all its processes.
    """

    code: int
    diagnosis: Diagnosis


def ran(command: Sequence[str], seconds: float) -> Ran:
    """Runs a command with this process's input, output and signals, and waits for its end.

    Raises:
        FileNotFoundError, PermissionError: there is no such program.
    """
    with tempfile.TemporaryDirectory(prefix="torchyoga-doctor-") as folder:
        environment = {**os.environ, FOLDER: folder, SECONDS: str(seconds)}
        code = _waited_for(command, environment)
        reports = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    return Ran(code, _together(reports))


def _waited_for(command: Sequence[str], environment: dict[str, str]) -> int:
    if not hasattr(signal, "sigtimedwait"):
        process = subprocess.Popen(command, env=environment)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal signals the program, too
        try:
            return _code(process.wait())
        finally:
            signal.signal(signal.SIGINT, before)
    passed = {getattr(signal, name) for name in _PASSED}
    before_mask = signal.pthread_sigmask(signal.SIG_BLOCK, passed | {signal.SIGCHLD})
    own_group = not _has_terminal()

    def prepare() -> None:
        if own_group:
            os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before_mask)

    sent = (0, 0.0)  # a signal, and when
    try:
        process = subprocess.Popen(command, env=environment, preexec_fn=prepare)
        while process.poll() is None:
            found = signal.sigtimedwait(passed | {signal.SIGCHLD}, _LOOK_SECONDS)
            # What the kernel sends, as for Ctrl-C, it sends to the program, too.
            if found is None or found.si_signo == signal.SIGCHLD or found.si_code > 0:
                continue
            # Others signal a process and then its group.
            if found.si_signo != sent[0] or time.monotonic() - sent[1] > _TWICE_SECONDS:
                with suppress(ProcessLookupError):
                    process.send_signal(found.si_signo)
                sent = found.si_signo, time.monotonic()
        return _code(process.returncode)
    finally:
        while signal.sigtimedwait(passed | {signal.SIGCHLD}, 0) is not None:
            continue  # it was for the program, which has ended
        signal.pthread_sigmask(signal.SIG_SETMASK, before_mask)


def _has_terminal() -> bool:
    """True if a terminal signals this process's group, so that the program has to be in it."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _code(code: int) -> int:
    return code if code >= 0 else _BY_SIGNAL - code


def _together(reports: list[dict[str, Any]]) -> Diagnosis:
    parts = [_read(one) for report in reports for one in report.get("diagnoses", [])]
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
    """Findings about the receipts and rows of ranks that ran together, loader by loader."""
    if len(reports) < 2:
        return []
    from .sharding import alike, disagreeing

    averages = any(report.get("averages") for report in reports)
    findings: list[Finding] = []
    names = reports[0].get("names", [])
    for name, *rows in zip(names, *(report.get("rows", []) for report in reports), strict=False):
        same = Diagnosis([*alike(rows, averages)])
        findings += (same.of(name) if len(names) > 1 else same).findings
    for receipts in zip(*(report["receipts"] for report in reports), strict=False):
        if all(isinstance(one, dict) and one.get("rows") for one in receipts):
            findings += disagreeing(receipts)
    return findings


def _read(plain: dict[str, Any]) -> Diagnosis:
    findings = [Finding(**one) for one in plain["findings"]]
    return Diagnosis(findings, plain["measured"], plain["left_out"])
