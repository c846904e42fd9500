"""A forked child becomes a program: its streams, its main module and its end.

For those who start programs that need no imports: children.py, remote/machines.py and trainers/nursery.py.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import NoReturn

_FLAGS = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_APPEND, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def become(program: Callable[[], object], *ends: Connection | Path | None) -> NoReturn:
    """Turns this process into a program in a session of its own, and ends it with the program.

    Args:
        program: what it does.
        ends: its standard input, output and error: a pipe or a file each; None leaves that one as it is.
    """

    def prepared() -> None:
        os.setsid()
        for number, end in enumerate(ends):
            if end is not None:
                _connect(number, end)
        # The streams of the process before were made for its own output.
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w", closefd=False), errors="backslashreplace", write_through=True
        )
        program()

    finish(prepared)


def finish(work: Callable[[], object]) -> NoReturn:
    """Does the work and ends this process with the exit code of an interpreter: that of SystemExit, or 1 and
    the traceback for an error.

    Threads and processes that are left do not delay the end.
    """
    code = 1
    try:
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        leave(code)


def leave(code: int) -> NoReturn:
    """Ends this process at once: nothing is flushed, no `finally` is heard and no thread or child awaited."""
    os._exit(code)


def run_main(code: str, argv: Sequence[str], *, has_file: bool = False) -> None:
    """Runs the text of a program as the main module, with these arguments.

    Args:
        code: the program.
        argv: its name and arguments.
        has_file: the name is that of a file with the program, which processes that it spawns import.
    """
    sys.argv = [*argv]
    main = sys.modules["__main__"] = ModuleType("__main__")
    if has_file:
        main.__file__ = argv[0]
    exec(compile(code, argv[0], "exec"), main.__dict__)


def _connect(number: int, end: Connection | Path) -> None:
    if isinstance(end, Path):
        opened = os.open(end, _FLAGS[number])
        os.dup2(opened, number)
        if opened != number:
            os.close(opened)
    else:
        os.dup2(end.fileno(), number)
        end.close()
