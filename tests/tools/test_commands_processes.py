"""The program as a shell runs it: pipes that close, Ctrl-C, terminals without UTF-8, completion."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from commanding import ENVIRONMENT, entry_point, hears_ctrl_c, process, run
from waiting import PATIENCE

import torchyoga as yoga


@pytest.fixture
def program(storage: yoga.Storage, tmp_path: Path) -> Path:
    """`yoga`, in a folder with a storage."""
    (tmp_path / "bin").mkdir()
    return entry_point(tmp_path / "bin")


def test_a_pipe_that_closes_ends_it_quietly(program: Path) -> None:
    text = f"{shlex.quote(str(program))} ls | head -1; echo ${{PIPESTATUS[0]}}"
    found = process("bash", "-c", text)
    assert found.stdout.splitlines()[0] == "id       versions"
    assert found.stderr == ""
    above, below = os.pipe()
    os.close(above)  # nobody reads from the beginning on
    for arguments in (["ls"], ["ls", "--json"], ["log", "images"]):
        ended = subprocess.run(
            [str(program), *arguments],
            stdout=below,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            env={**os.environ, **ENVIRONMENT},
        )
        assert (ended.returncode, ended.stderr) == (141, b"")
    os.close(below)


def test_a_closed_output_and_a_full_disk(program: Path) -> None:
    found = process("bash", "-c", f"{shlex.quote(str(program))} ls >&-")
    assert (found.returncode, found.stderr) == (0, "")
    if Path("/dev/full").exists():
        found = process("bash", "-c", f"{shlex.quote(str(program))} ls > /dev/full")
        assert found.returncode == 2
        assert found.stderr.startswith("error: ")
        assert len(found.stderr.splitlines()) == 1


def test_ctrl_c_ends_it_quietly(program: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        running = subprocess.Popen(
            [str(program), "head", f"http://127.0.0.1:{server.getsockname()[1]}/rows.jsonl"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **ENVIRONMENT},
            preexec_fn=hears_ctrl_c,
        )
        with server.accept()[0]:  # it waits for an answer
            running.send_signal(signal.SIGINT)
            assert b"".join(running.communicate(timeout=PATIENCE)).strip() == b""
    assert running.returncode == 130


def test_a_terminal_without_utf8_gets_escapes(program: Path) -> None:
    yoga.Storage("storage").submit([1], "fotos größe", "1", progress=False)
    plain = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    found = process(str(program), "ls", **plain)
    assert r"fotos gr\xf6\xdfe" in found.stdout
    found = process(str(program), "info", "gr", **plain)
    assert found.returncode == 2
    assert r"fotos gr\xf6\xdfe" in found.stderr


def completed(words: str, shell: str = "bash") -> list[str]:
    """What a shell offers for the last of some words."""
    count = len(shlex.split(words)) - (0 if words.endswith(" ") else 1)
    last = "" if words.endswith(" ") else words.rsplit(" ", 1)[1]
    given = {"COMP_WORDS": words, "COMP_CWORD": str(last if shell == "fish" else count)}
    found = run(_YOGA_COMPLETE=f"{shell}_complete", **given)
    assert found.stderr == ""
    lines = found.stdout.strip().splitlines()
    if shell == "zsh":  # kind, value and help on lines of their own
        return lines[1::3]
    return [line.split(",", 1)[1].split("\t")[0] for line in lines]


def test_commands_options_ids_and_versions_are_completed(storage: yoga.Storage) -> None:
    storage.submit([1], "im\nages\x1b[31m", "1", progress=False)  # a name that no shell shows as it is
    assert completed("yoga l") == ["log", "ls"]
    assert completed("yoga info ") == ["images", "numbers"]
    assert completed("yoga info im") == ["images"]
    assert completed("yoga info images ") == ["1.0", "1.1"]
    assert completed("yoga diff images 1.0 1") == ["1.0", "1.1"]
    assert completed("yoga info -s nowhere ") == []
    assert completed("yoga info --js") == ["--json"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_too(program: Path, shell: str) -> None:
    assert completed("yoga info im", shell) == ["images"]
    source = process(str(program), _YOGA_COMPLETE=f"{shell}_source")
    assert source.returncode == 0
    assert "_YOGA_COMPLETE" in source.stdout


def test_bash_completes_with_the_line_that_the_page_shows(program: Path) -> None:
    page = Path(yoga.__file__).parents[1] / "docs" / "commands.md"
    if sys.platform == "darwin":
        pytest.skip("bash of macOS is older than what click supports")
    line = 'eval "$(_YOGA_COMPLETE=bash_source yoga)"'
    assert line in page.read_text()
    script = f"""
export PATH={shlex.quote(str(program.parent))}:$PATH
{line}
COMP_WORDS=(yoga info im) COMP_CWORD=2
_yoga_completion yoga
echo "${{COMPREPLY[@]}}"
"""
    found = process("bash", "--norc", "-c", script)
    assert found.stdout == "images\n", found.stderr
