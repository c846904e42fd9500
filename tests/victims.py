"""Forked children that are killed in the middle of their work."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from becoming import leave
from waiting import PATIENCE

# Operations of a process on the world outside, as far as Python's audit events report them.
_TOUCHES = ("open", "os.", "shutil.", "socket.", "fcntl.", "mmap.")


class Victim:
    """A forked child that does something until it is done, or killed.

    Args:
        act: what it does; returns plain data.
        touches: how often it may touch the world outside before it is killed; None for never.
    """

    def __init__(self, act: Callable[[], object], touches: int | None = None) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            _live(act, touches, write)
        os.close(write)
        self._read = read

    def kill_after(self, seconds: float) -> None:
        """SIGKILL, unless it has ended by then."""
        time.sleep(seconds)
        os.kill(self.pid, signal.SIGKILL)  # not waited for yet, so the process id is still its own

    def stop_for(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after that."""
        os.kill(self.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self.pid, signal.SIGCONT)

    @property
    def has_ended(self) -> bool:
        """True once it has, or was killed; its end is still to be asked for."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self) -> tuple[int, Any] | None:
        """None if it was killed; otherwise how often it has touched the world outside, and the result of
        `act`.

        Raises:
            AssertionError: it has failed.
            TimeoutError: it hangs.
        """
        with os.fdopen(self._read) as pipe:
            code = self._code()
            text = pipe.read()
        if code == -signal.SIGKILL:
            return None
        assert code == 0, f"the child ended with {code}:\n{text}"
        touches, result = json.loads(text)
        return touches, result

    def _code(self) -> int:
        end = time.monotonic() + PATIENCE
        while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise TimeoutError("the child hangs")
            time.sleep(0.002)
        return os.waitstatus_to_exitcode(ended[1])


def _live(act: Callable[[], object], touches: int | None, pipe: int) -> None:
    done = 0

    def watch(event: str, _: tuple[Any, ...]) -> None:
        nonlocal done
        if event.startswith(_TOUCHES):
            done += 1
            if done == touches:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(watch)
        result = act()
        # Less than a pipe holds, so that it need not be read yet.
        os.write(pipe, json.dumps([done, result]).encode())
        leave(0)
    except BaseException:
        os.write(pipe, traceback.format_exc().encode()[-30_000:])
    finally:
        leave(1)


def done_by_a_child(act: Callable[[], Any]) -> Any:
    """The result of `act`, called in a forked child; AssertionError if it fails."""
    ended = Victim(act).end()
    assert ended is not None
    return ended[1]


class Killer:
    """Kills at random moments, half of them by the clock, half before an operation on the world outside.

    The moments are drawn from the time it took when nothing was killed, which is only a guess at first.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._extents: dict[
            str, tuple[int, float]
        ] = {}  # how often each act touches the world outside; how long it takes

    def strike(self, name: str, act: Callable[[], object]) -> bool:
        """Does it in a child that may be killed; returns whether it was. Acts of one `name` take about
        equally long."""
        touches, seconds = self._extents.get(name, (50, 0.2))
        by_touch = self._chance.random() < 0.5
        started = time.monotonic()

        def do() -> None:
            act()

        victim = Victim(do, self._chance.randint(1, touches) if by_touch else None)
        if not by_touch:
            victim.kill_after(self._chance.random() * seconds)
        ended = victim.end()
        if ended is not None:
            self._extents[name] = (ended[0], time.monotonic() - started)
        return ended is None
