"""A "machine": processes with a home folder of their own, which can be killed or paused as a whole."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from waiting import PATIENCE

__all__ = ["Machine", "machine", "running"]

ROOT = Path(__file__).parents[2]
GUARD = Path(__file__).with_name("programs") / "guard.py"


class Machine:
    """A running command; made by `machine` or `running`."""

    def __init__(self, guard: subprocess.Popen[str], pid: int, folder: Path, names: Sequence[Path]) -> None:
        self._guard = guard
        self.pid = pid
        self.folder = folder
        self._names = names
        self._code: int | None = None

    @property
    def is_running(self) -> bool:
        """True if the command itself is running, not only processes that it has started."""
        return self._guard.poll() is None

    @property
    def stdout(self) -> str:
        """The output so far."""
        return self._names[0].read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """The errors printed so far."""
        return self._names[1].read_text(errors="replace")

    def wait(self, timeout: float = PATIENCE) -> int:
        """The exit code; minus the number of the signal if one ended it.

        Raises:
            AssertionError: it took too long, with the end of its output; it is killed.
        """
        try:
            self._guard.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"a machine ran longer than {timeout} s:\n{self._tail()}") from None
        if self._code is None:
            assert self._guard.stdout is not None
            self._code = int(self._guard.stdout.readline())
        return self._code

    def check(self, timeout: float = PATIENCE) -> str:
        """The output, once it has ended without an error.

        Raises:
            AssertionError: it took too long or failed, with the end of its output.
        """
        code = self.wait(timeout)
        assert code == 0, f"a machine ended with {code}:\n{self._tail()}"
        return self.stdout

    def says(self, text: str, timeout: float = PATIENCE) -> None:
        """Returns once the text is in stdout.

        Raises:
            AssertionError: it ended without, or took too long.
        """
        for _ in range(int(timeout * 50)):
            is_running = self.is_running
            if text in self.stdout:
                return
            assert is_running, f"a machine ended before it said {text!r}:\n{self._tail()}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(0.02)
        raise AssertionError(f"a machine did not say {text!r} in {timeout} s:\n{self._tail()}")

    def kill(self) -> None:
        """SIGKILL to all its processes, paused or not; returns when the command is gone."""
        self._signal(signal.SIGKILL)
        self._guard.wait(PATIENCE)

    def pause(self) -> None:
        """All its processes stop where they are."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """They go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _tail(self) -> str:
        return f"{self.stdout[-3000:]}\n{self.stderr[-6000:]}"


@contextlib.contextmanager
def machine(
    command: Sequence[str], folder: Path, environment: Mapping[str, str | None] | None = None
) -> Iterator[Machine]:
    """A command in a session of its own, from the folder; killed whole at the end, or if this process dies.

    Args:
        command: with its arguments.
        folder: its working folder, home and (in `cache/`) cache.
        environment: added to this process's own; None takes a variable away.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = Path(tempfile.mkdtemp(prefix="log-", dir=folder))
    names = [log / "stdout", log / "stderr"]
    added = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), **(environment or {})}
    variables = {**os.environ, **added}
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", str(GUARD), *map(str, names), *command],
        cwd=folder,
        env={name: value for name, value in variables.items() if value is not None},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    try:
        ready, _, _ = select.select([guard.stdout], [], [], PATIENCE)
        line = guard.stdout.readline() if ready else ""
        assert line, f"{command[0]} could not be started"
        found = Machine(guard, int(line), folder, names)
        try:
            yield found
        finally:
            found.kill()
            found._signal(signal.SIGKILL)  # what was started while the first was on its way
    finally:
        guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            guard.wait(5)
        guard.kill()
        guard.wait(PATIENCE)
        guard.stdout.close()


@contextlib.contextmanager
def running(
    program: str, folder: Path, *arguments: str, environment: Mapping[str, str | None] | None = None
) -> Iterator[Machine]:
    """A Python program, given as text, on a machine of its own; it can import this package.

    The text is a file there, so that its processes can be spawned as well as forked, given the usual
    `if __name__ == "__main__":`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    added = {
        "PYTHONPATH": os.pathsep.join(name for name in paths if name),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        **(environment or {}),
    }
    with machine([sys.executable, str(path), *arguments], folder, added) as found:
        yield found
