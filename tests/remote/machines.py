"""A "machine": processes with a home folder of their own, which can be killed or paused as a whole."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn, Protocol

from becoming import become, run_main
from waiting import PATIENCE

ROOT = Path(__file__).parents[2]
GUARD = Path(__file__).with_name("programs") / "guard.py"
_HAS_SERVER = "forkserver" in multiprocessing.get_all_start_methods()


class _Guard(Protocol):
    """The process that starts a machine's first one, and kills all of it when it is let go."""

    def is_running(self) -> bool:
        """True until the machine's first process has ended."""

    def wait(self, timeout: float) -> None:
        """Returns when that has ended; TimeoutError if it takes longer."""

    def number(self) -> int | None:
        """The number of that process; at the second call, its exit code. None if there is none."""

    def let_go(self) -> None:
        """Ends it."""


class _StartedGuard:
    """A guard that is a program, for any command."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._leash, self._heard = process, process.stdin, process.stdout

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout: float) -> None:
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def number(self) -> int | None:
        ready, _, _ = select.select([self._heard], [], [], PATIENCE)
        line = self._heard.readline() if ready else ""
        return int(line) if line else None

    def let_go(self) -> None:
        self._leash.close()
        with contextlib.suppress(TimeoutError):
            self.wait(5)
        self._process.kill()
        self._process.wait(PATIENCE)
        self._heard.close()


class _ForkedGuard:
    """A guard that is a child of the fork server, for Python programs."""

    def __init__(self, process: BaseProcess, leash: Connection, heard: Connection) -> None:
        self._process, self._leash, self._heard = process, leash, heard

    def is_running(self) -> bool:
        return self._process.is_alive()

    def wait(self, timeout: float) -> None:
        self._process.join(timeout)
        if self._process.is_alive():
            raise TimeoutError

    def number(self) -> int | None:
        with contextlib.suppress(EOFError):
            return int(self._heard.recv()) if self._heard.poll(PATIENCE) else None
        return None

    def let_go(self) -> None:
        self._leash.close()
        self._process.join(5)
        self._process.kill()
        self._process.join(PATIENCE)
        self._heard.close()


class Machine:
    """A running command; made by `machine` or `running`."""

    def __init__(self, guard: _Guard, pid: int, folder: Path, names: Sequence[Path]) -> None:
        self._guard = guard
        self.pid = pid
        self.folder = folder
        self._names = names
        self._code: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether the command itself is, not what it has started."""
        return self._guard.is_running()

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
        try:
            self._guard.wait(timeout)
        except TimeoutError:
            self.kill()
            raise AssertionError(f"a machine ran longer than {timeout} s:\n{self._tail()}") from None
        if self._code is None:
            self._code = self._guard.number()
            assert self._code is not None
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
            with contextlib.suppress(TimeoutError):
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
    names = _outputs(folder)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(GUARD), *map(str, names), *command],
        cwd=folder,
        env=_variables(folder, environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with _guarded(_StartedGuard(process), command[0], folder, names) as found:
        yield found


@contextlib.contextmanager
def _guarded(guard: _Guard, what: str, folder: Path, names: Sequence[Path]) -> Iterator[Machine]:
    try:
        pid = guard.number()
        assert pid is not None, f"{what} could not be started"
        found = Machine(guard, pid, folder, names)
        try:
            yield found
        finally:
            found.kill()
            found._signal(signal.SIGKILL)  # what was started while the first was on its way
    finally:
        guard.let_go()


def _outputs(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    log = Path(tempfile.mkdtemp(prefix="log-", dir=folder))
    return [log / "stdout", log / "stderr"]


def _variables(folder: Path, environment: Mapping[str, str | None] | None) -> dict[str, str]:
    added = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), **(environment or {})}
    return {name: value for name, value in {**os.environ, **added}.items() if value is not None}


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
    if fresh or not _HAS_SERVER:
        with machine([sys.executable, str(path), *arguments], folder, added) as found:
            yield found
        return
    names = _outputs(folder)
    context = multiprocessing.get_context("forkserver")
    held, leash = context.Pipe(duplex=False)
    heard, tell = context.Pipe(duplex=False)
    variables = _variables(folder, added)
    given = (path, arguments, folder, variables, names, held, tell)
    process = context.Process(target=_guard_program, args=given)
    process.start()
    held.close()
    tell.close()
    with _guarded(_ForkedGuard(process, leash, heard), str(path), folder, names) as found:
        yield found


def _guard_program(
    path: Path,
    arguments: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    names: Sequence[Path],
    held: Connection,
    tell: Connection,
) -> None:
    """Does in a child of the fork server what guard.py does, with a program that it forks."""
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        held.close()
        tell.close()
        _run(path, arguments, folder, variables, names, go)
    os.close(go)
    os.read(ready, 1)  # it leads its session now, so the whole of it can be killed
    tell.send(child)

    def watch() -> None:
        held.poll(None)  # until the other end is closed, however that one dies
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        tell.send(code)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def _run(
    path: Path,
    arguments: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    names: Sequence[Path],
    go: int,
) -> NoReturn:
    """Becomes the program, and ends this process as it says."""

    def program() -> None:
        os.close(go)  # it leads its session now
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:0] = [str(folder), str(ROOT)]
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # as OMP_NUM_THREADS says to a fresh one
        run_main(path.read_text(), [str(path), *arguments], has_file=True)

    become(program, Path(os.devnull), *names)
