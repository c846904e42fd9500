"""Machines that take orders over a pipe: forked once, so that an order needs no imports, and stopped or
killed at a given step."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from becoming import leave

import torchyoga as yoga
from torchyoga.stores.kinds import Kind

__all__ = ["Act", "Hand"]

Act = Callable[..., Any]
# Operations of a process on the world outside, as far as Python's audit events report them; requests to a
# store come on top.
_TOUCHES = ("open", "os.", "shutil.", "socket.", "fcntl.", "mmap.")
_CHANGES = ("pipe_file", "put_file", "rm_file")  # that change the content of a store
_READ = 1 << 16


class Hand:
    """A forked child that does one thing after another, each on an order.

    The parent may have no threads, and polls: `poll` never waits.

    Args:
        name: for people.
        begin: called once in the child; returns its functions by name. What these return is plain data.
        log: a file for the output of the child.
        patience: seconds that one order may take; then the stacks of all threads are written to the log, and
            the child ends.
    """

    def __init__(self, name: str, begin: Callable[[], Mapping[str, Act]], log: Path, patience: float) -> None:
        self.name = name
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._orders)
            os.close(self._answers)
            _live(begin, orders, answers, log, patience)
        os.close(orders)
        os.close(answers)
        os.set_blocking(self._answers, False)
        self._text = b""
        self.is_stopped = self.is_dead = False
        self.is_busy = False

    def order(self, act: str, *args: Any, signal: int = 0, at: int = 0, of: str = "touches") -> None:
        """Begins something.

        Args:
            act: the name of the function.
            args: its arguments.
            signal: sent by the child to itself at a step, unless it is 0.
            at: the step, counted from 1.
            of: what counts as steps: "touches" of the world outside, "requests" to stores, "changes" of
                objects other than claims, or changes of "manifests" only; there is a step before each request
                and after it.
        """
        assert not self.is_busy, f"{self.name} is busy"
        self.is_busy = True
        order = {"act": act, "args": args, "signal": signal, "at": at, "of": of}
        os.write(self._orders, json.dumps(order).encode() + b"\n")

    def poll(self) -> dict[str, Any] | None:
        """The answer, if it has arrived; sets `is_stopped` and `is_dead`."""
        if not self.is_dead:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid and os.WIFSTOPPED(status):
                self.is_stopped = True
            elif pid and os.WIFCONTINUED(status):
                self.is_stopped = False
            elif pid:
                self.is_dead = True
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._answers, _READ):
                self._text += data
        line, newline, rest = self._text.partition(b"\n")
        if not newline:
            return None
        self._text, self.is_busy = rest, False
        answer: dict[str, Any] = json.loads(line)
        return answer

    def do(self, act: str, *args: Any, timeout: float) -> Any:
        """The result; AssertionError if it fails or takes too long."""
        self.order(act, *args)
        end = time.monotonic() + timeout
        while (answer := self.poll()) is None:
            assert not self.is_dead, f"{self.name} has died while it did {act}"
            assert time.monotonic() < end, f"{self.name} takes more than {timeout} s to {act}"
            time.sleep(0.002)
        assert "result" in answer, f"{act} by {self.name}: {answer}"
        return answer["result"]

    def signal(self, number: int) -> None:
        """Sends a signal, unless the child has died."""
        if not self.is_dead:
            os.kill(self.pid, number)  # not waited for yet, so the process id is still its own

    def end(self) -> None:
        """Kills the child."""
        self.signal(signal.SIGKILL)
        if not self.is_dead:
            os.waitpid(self.pid, 0)
            self.is_dead = True
        os.close(self._orders)
        os.close(self._answers)


class _Steps:
    """Counts the operations of this process on the world outside, and sends it a signal at a given step."""

    def __init__(self) -> None:
        self.begin(0, 0, "touches")

    def begin(self, number: int, at: int, of: str) -> None:
        self.done = dict.fromkeys(("touches", "requests", "changes", "manifests"), 0)
        self._signal, self._at, self._of = number, at, of

    def watch(self) -> None:
        """Counts from now on, for ever."""
        sys.addaudithook(lambda event, _: self._step("touches") if event.startswith(_TOUCHES) else None)
        for name in ("run", "awaited"):
            setattr(Kind, name, self._watched(getattr(Kind, name)))

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(store: Kind, what: Any, *args: Any, **kwargs: Any) -> Any:
            names = " ".join(name for name in args if isinstance(name, str))
            is_change = what in _CHANGES and "/.leases/" not in names
            kinds = ["touches", "requests"] + ["changes"] * is_change
            kinds += ["manifests"] * (is_change and names.endswith("manifest.json"))
            self._step(*kinds)
            try:
                return call(store, what, *args, **kwargs)
            finally:
                self._step(*kinds)

        return watched

    def _step(self, *kinds: str) -> None:
        for kind in kinds:
            self.done[kind] += 1
        if self._signal and self._of in kinds and self.done[self._of] == self._at:
            number, self._signal = self._signal, 0
            os.kill(os.getpid(), number)


def _live(
    begin: Callable[[], Mapping[str, Act]], orders: int, answers: int, log: Path, patience: float
) -> None:
    try:
        stream = log.open("a")
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
        logging.basicConfig(
            stream=stream, format="%(asctime)s.%(msecs)03d %(process)d %(message)s", datefmt="%H:%M:%S"
        )
        logging.getLogger("torchyoga").setLevel(logging.INFO)
        acts, steps = begin(), _Steps()
        steps.watch()
        with os.fdopen(orders) as lines:
            for line in lines:
                order = json.loads(line)
                logging.getLogger("torchyoga").info("-- %s", line.strip())
                faulthandler.dump_traceback_later(patience, exit=True, file=stream)
                steps.begin(order["signal"], order["at"], order["of"])
                answer = _done(acts[order["act"]], order["args"]) | {"steps": steps.done}
                steps.begin(0, 0, "touches")
                faulthandler.cancel_dump_traceback_later()
                os.write(answers, json.dumps(answer).encode() + b"\n")
    except BaseException:
        traceback.print_exc()
    finally:
        leave(1)


def _done(act: Act, args: list[Any]) -> dict[str, Any]:
    try:
        return {"result": act(*args)}
    except yoga.errors.YogaError as error:
        logging.getLogger("torchyoga").info("-- failed", exc_info=True)
        return {"error": type(error).__name__, "message": str(error)[:500]}
    except BaseException:
        return {"error": "", "message": traceback.format_exc()[-3000:]}
