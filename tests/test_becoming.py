"""How a program that was forked ends, seen from its starter."""

from __future__ import annotations

import pytest
from children import run_program


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no rows')", 1, "no rows\n"),
        ("raise KeyError('no rows')", 1, "KeyError: 'no rows'\n"),
    ],
)
def test_it_ends_like_an_interpreter(ending: str, code: int, said: str) -> None:
    ended = run_program(f"import sys\nprint(sys.argv[1:], __name__)\n{ending}", "a", "b c")
    assert (ended.returncode, ended.stdout) == (code, "['a', 'b c'] __main__\n")
    assert ended.stderr.endswith(said)
    assert bool(ended.stderr) == bool(said)
