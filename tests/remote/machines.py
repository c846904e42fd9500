"""A "machine": processes with a home folder of their own, which can be killed as a whole."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from becoming import become, run_main
from waiting import PATIENCE

ROOT = Path(__file__).parents[2]


class Machine:
    """A running command; made by `machine` or `running`.

    Its guard has started it, and kills all of it as soon as it has ended, or is let go.
    """

    def __init__(self, guard: BaseProcess, heard: Connection, names: Sequence[Path]) -> None:
        self._guard, self._heard, self._names = guard, heard, names
        self.pid = self._number()
        self._code: int | None = None

    def _number(self) -> int:
        """The number of the command's process; at the second call, its exit code."""
        assert self._heard.poll(PATIENCE), f"the guard of a machine is silent for {PATIENCE} s"
        return int(self._heard.recv())

    @property
    def is_running(self) -> bool:
        """Whether the command itself is, not what it has started."""
        return self._guard.is_alive()

    @property
    def stdout(self) -> str:
        """The output so far."""
        return self._names[0].read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """The errors printed so far."""
        return self._names[1].read_text(errors="replace")

    @property
    def complaints(self) -> str:
        """The errors printed so far, without what a slow machine says of its waiting for downloads."""
        lines = self.stderr.splitlines(keepends=True)
        waits = "waiting for another process that downloads"
        return "".join(line for line in lines if not line.startswith(waits))

    def wait(self, timeout: float = PATIENCE) -> int:
        """The exit code; minus the number of the signal if one ended it.

        Raises:
            AssertionError: it took too long, with the end of its output; it is killed.
        """
        self._guard.join(timeout)
        if self.is_running:
            self.kill()
            raise AssertionError(f"a machine ran longer than {timeout} s:\n{self._tail()}")
        if self._code is None:
            self._code = self._number()
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
            self._guard.join(0.02)
        raise AssertionError(f"a machine did not say {text!r} in {timeout} s:\n{self._tail()}")

    def kill(self) -> None:
        """SIGKILL to all its processes; returns when the command is gone."""
        _kill(self.pid)
        self._guard.join(PATIENCE)

    def _tail(self) -> str:
        return f"{self.stdout[-3000:]}\n{self.stderr[-6000:]}"


def _kill(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


@contextlib.contextmanager
def machine(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str | None] | None = None,
    is_forked: bool = False,
) -> Iterator[Machine]:
    """A command in a session of its own, from the folder; killed whole at the end, or if this process dies.

    Args:
        command: with its arguments.
        folder: its working folder, home and (in `cache/`) cache.
        environment: added to this process's own; None takes a variable away.
        is_forked: it is a file of Python, which the guard itself runs after a fork, and its arguments.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = Path(tempfile.mkdtemp(prefix="log-", dir=folder))
    names = [log / "stdout", log / "stderr"]
    added = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), **(environment or {})}
    variables = {name: value for name, value in {**os.environ, **added}.items() if value is not None}
    context = multiprocessing.get_context("forkserver")
    held, leash = context.Pipe(duplex=False)
    heard, tell = context.Pipe(duplex=False)
    given = (command, is_forked, folder, variables, names, held, tell)
    guard = context.Process(target=_guard, args=given)
    guard.start()
    held.close()
    tell.close()
    try:
        found = Machine(guard, heard, names)
        try:
            yield found
        finally:
            found.kill()
            _kill(found.pid)  # what was started while the first was on its way
    finally:
        leash.close()
        guard.join(5)
        guard.kill()
        guard.join(PATIENCE)
        heard.close()


@contextlib.contextmanager
def running(
    program: str,
    folder: Path,
    *arguments: str,
    environment: Mapping[str, str | None] | None = None,
    fresh: bool = False,
) -> Iterator[Machine]:
    """A Python program, given as text, on a machine of its own; it can import this package.

    Its first process is forked from one that has imported torch, this package and s3fs, and has no threads;
    a fresh one is an interpreter of its own, for what imports, starts other processes in some way, or looks
    at how an interpreter ends. The text is a file there, so that its processes can be spawned as well as
    forked, given the usual `if __name__ == "__main__":`.
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
    command = [*([sys.executable] if fresh else []), str(path), *arguments]
    with machine(command, folder, added, is_forked=not fresh) as found:
        yield found


def _guard(
    command: Sequence[str],
    is_forked: bool,
    folder: Path,
    variables: Mapping[str, str],
    names: Sequence[Path],
    held: Connection,
    tell: Connection,
) -> None:
    """Starts the command from a child of the fork server; kills its session when it has ended, or when the
    other end of `held` is closed, however the process that has it dies."""
    ready, go = os.pipe()

    def program() -> None:
        os.close(go)  # it leads its session now
        os.chdir(folder)
        if not is_forked:
            os.execve(command[0], command, dict(variables))
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:0] = [str(folder), str(ROOT)]
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # as OMP_NUM_THREADS says to a fresh one
        run_main(Path(command[0]).read_text(), command, has_file=True)

    child = os.fork()
    if child == 0:
        held.close()
        tell.close()
        become(program, Path(os.devnull), *names)
    os.close(go)
    os.read(ready, 1)  # so the whole session can be killed
    tell.send(child)

    def watch() -> None:
        held.poll(None)
        _kill(child)

    threading.Thread(target=watch, daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        tell.send(code)
    _kill(child)
