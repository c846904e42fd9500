"""Child processes that do one thing and cannot hang or go on with the tests: forked ones, and programs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import PIPE
from typing import Any, TextIO

from becoming import become, finish, run_main
from waiting import PATIENCE

_HAS_SERVER = "forkserver" in multiprocessing.get_all_start_methods()


def forked(work: Callable[[], object]) -> Callable[[], int]:
    """Begins the work in a forked child; returns a function that waits for it.

    The function returns 0 if the work was done, 1 if it raised, minus SIGALRM if it hung.
    """
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(PATIENCE))
        finish(work)
    return lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def status_of_child(work: Callable[[], object]) -> int:
    """Does the work in a forked child; returns what the function of `forked` returns."""
    return forked(work)()


def in_processes(method: str, *works: Callable[[], object]) -> None:
    """Does each work in a process of its own, which is started in this way; none may raise, or hang."""
    context: Any = multiprocessing.get_context(method)
    processes = [context.Process(target=work) for work in works]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
        assert process.exitcode == 0


def dies_in_a_child(act: Callable[[], Any], operation: int) -> bool:
    """Kills a forked child just before its `operation`th operation on the disk; False if it ended before."""
    left = operation

    def watch(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        writes = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes or event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def watched() -> None:
        sys.addaudithook(watch)
        act()

    status = status_of_child(watched)
    assert status in (0, -signal.SIGKILL)
    return status != 0


class Program:
    """A program in a process of its own; made by `started`."""

    def __init__(self, process: BaseProcess | subprocess.Popen[str], stdin: TextIO, stdout: TextIO) -> None:
        self._process = process
        self.stdin = stdin
        self.stdout = stdout

    @property
    def pid(self) -> int:
        """The process id, and the id of its process group."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True until it has ended."""
        if isinstance(self._process, subprocess.Popen):
            return self._process.poll() is None
        return self._process.is_alive()

    def kill(self) -> None:
        """SIGKILL to this process alone, not to those that it has started; returns when it is gone."""
        self._process.kill()
        self.wait()

    def wait(self, timeout: float = PATIENCE) -> int:
        """The exit code; minus the number of the signal if a signal ended it.

        Raises:
            AssertionError: it took too long.
        """
        if isinstance(self._process, subprocess.Popen):
            return self._process.wait(timeout)
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"a program ran longer than {timeout} s"
        return self._process.exitcode


@contextlib.contextmanager
def started(code: str, *arguments: str) -> Iterator[Program]:
    """Runs a program as `python -c` would, in a process that has imported torch and this package already.

    It is a child of the fork server, which has no threads, no files and no state of the tests. Use a new
    interpreter for tests of imports, memory in use, environment variables or the end of an interpreter. At
    the end, the process and all that it has started are killed.

    Args:
        code: the program.
        arguments: what it finds in `sys.argv[1:]`.
    """
    if not _HAS_SERVER:
        with subprocess.Popen(_command(code, arguments), stdin=PIPE, stdout=PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield Program(process, process.stdin, process.stdout)
            finally:
                process.kill()
        return
    context = multiprocessing.get_context("forkserver")
    stdin_end, stdin_start = context.Pipe(duplex=False)
    stdout_end, stdout_start = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(code, arguments, stdin_end, stdout_start, None))
    child.start()
    stdin_end.close()
    stdout_start.close()
    with (
        open(os.dup(stdin_start.fileno()), "w", buffering=1) as stdin,
        open(os.dup(stdout_end.fileno())) as stdout,
    ):
        stdin_start.close()
        stdout_end.close()
        try:
            yield Program(child, stdin, stdout)
        finally:
            _end(child)


def run_program(code: str, *arguments: str, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
    """Runs a program like `started` to its end, with nothing to read on its standard input.

    Raises:
        AssertionError: it took too long.
    """
    if not _HAS_SERVER:
        return subprocess.run(
            _command(code, arguments), capture_output=True, text=True, timeout=timeout, check=False
        )
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "stdout"), Path(folder, "stderr")
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=_run, args=(code, arguments, None, output, errors))
        process.start()
        try:
            process.join(timeout)
            assert process.exitcode is not None, f"a program ran longer than {timeout} s"
            texts = [path.read_text(errors="replace") for path in (output, errors)]
            return subprocess.CompletedProcess(["-c", *arguments], process.exitcode, *texts)
        finally:
            _end(process)


def _command(code: str, arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def _end(process: BaseProcess) -> None:
    process.kill()
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join(PATIENCE)


def _run(
    code: str,
    arguments: tuple[str, ...],
    stdin: Connection | None,
    stdout: Connection | Path,
    stderr: Path | None,
) -> None:
    """Becomes the program; runs in the child."""

    def program() -> None:
        multiprocessing.set_start_method(None, force=True)  # its own children start as they do by default
        run_main(code, ["-c", *arguments])

    become(program, stdin or Path(os.devnull), stdout, stderr)
