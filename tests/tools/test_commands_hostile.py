"""Names and values that try to be more than text."""

from __future__ import annotations

import json
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from commanding import on_terminal, parsed, process, run, said
from hypothesis import given
from hypothesis import strategies as st

import torchyoga as yoga
from torchyoga.tools.commands.group import command
from torchyoga.tools.commands.output import Asked, Table, jsonable, value_text

ESCAPE, TURN = chr(27), chr(0x202E)
BAD = f"a[red]b{ESCAPE}[31m{TURN}c\nd\te</script>" + chr(0x2028) + chr(0xD800) + chr(7)
SHOWN = r"a[red]b\x1b[31m\u202ec\nd\te</script>\u2028\ud800\x07"
ID = f"pho[red]tos{ESCAPE}[31m{TURN}x"


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> yoga.Storage:
    monkeypatch.chdir(tmp_path)
    storage = yoga.Storage("storage")
    text = BAD.replace(chr(0xD800), "")
    rows = [{"label": text, f"col{ESCAPE}[2J{TURN}": float("nan"), "ok": float("-inf")}]
    storage.submit(rows, ID, f"1{ESCAPE}c", message=text, info={text: text}, progress=False)
    storage.tag(ID, f"t{ESCAPE}", f"1{ESCAPE}c", message=text)
    return storage


def is_plain(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


COMMANDS = [["ls"], ["ls", "-l"], ["info", ID], ["head", ID], ["log", ID], ["tag", ID], ["check"]]
COMMANDS += [["tag", ID, f"t{ESCAPE}"], ["gc", "--grace", "0"], ["diff", ID, f"1{ESCAPE}c"]]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments)[:8].strip())
def test_names_and_texts_are_shown_as_text(
    storage: yoga.Storage, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    assert is_plain(said(*arguments))
    parsed(*arguments)
    assert run(*arguments, "--json").stdout.isascii()

    def show() -> None:
        with pytest.raises(SystemExit):
            command.main(arguments, prog_name="yoga")

    assert is_plain(on_terminal(monkeypatch, 200, show))


def test_markup_is_no_markup(storage: yoga.Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert r"pho[red]tos\x1b[31m\u202ex" in said("ls")
    table = Table(("[bold]t", ":smile:"), [(BAD, "[/red]")])
    shown = on_terminal(monkeypatch, 200, lambda: Asked("", False).write({}, table))
    assert SHOWN in shown
    assert "[bold]t" in shown
    assert ":smile:" in shown
    assert "[/red]" in shown


def test_errors_are_shown_as_text(storage: yoga.Storage) -> None:
    for arguments in (
        ["info", BAD],
        ["info", ID, BAD],
        ["head", ID, "-c", BAD],
        [BAD],
        ["ls", BAD],
        ["-" + BAD],
    ):
        found = run(*arguments)
        assert found.exit_code == 2
        assert is_plain(found.stderr)
        assert len(found.stderr.splitlines()) <= 2
        assert len(found.stderr) < 2200


def test_texts_are_shown_as_text(storage: yoga.Storage, capsys: pytest.CaptureFixture[str]) -> None:
    Asked("", False).write({}, [BAD, BAD])
    assert is_plain(capsys.readouterr().out)


def test_numbers_that_json_lacks_are_texts(storage: yoga.Storage) -> None:
    values = parsed("head", ID)["rows"][0]["values"]
    assert [value for value in values.values() if value != BAD.replace(chr(0xD800), "")] == [
        "NaN",
        "-Infinity",
    ]
    assert float(values["ok"]) == float("-inf")


def test_a_dataset_of_a_thousand_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = {f"c{number:05}": number for number in range(1000)}
    yoga.Storage("storage").submit([row], "wide", "1", progress=False)
    text = said("info", "wide")
    assert text.endswith("and 800 more columns; --json prints all\n")
    assert text.count("\n") < 220
    text = said("head", "wide")
    assert text.startswith("row  c00000  c00001")
    assert text.endswith("and 988 more columns; --columns names some\nrow 0 of 1\n")
    assert len(parsed("info", "wide")["columns"]) == 1000
    assert said("head", "wide", "-c", "c00999").startswith("row  c00999\n  0  999\n")


def test_ten_thousand_columns_in_a_pipe() -> None:
    names = [f"c{number}" for number in range(10_000)]
    code = (
        "from torchyoga.tools.commands.output import Asked, Table\nnames = [f'c{n}' for n in range(10_000)]\n"
    )
    found = process(sys.executable, "-c", f"{code}Asked('', False).write({{}}, Table(names, [names]))")
    assert found.stdout == "\n".join(["  ".join(names)] * 2) + "\n"


def test_long_values_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"text": "x" * 10**6, "many": np.arange(10**6), "raw": b"y" * 10**6, "list": list(range(1000))}
    yoga.Storage("storage").submit([row], "long", "1", progress=False)
    text = said("head", "long")
    assert max(map(len, text.splitlines())) < 300
    assert "x" * 60 + "…" in text
    assert "int64 (1000000,): 0 1 2 3 4 5 …" in text
    assert "1,000,000 bytes" in text
    values = parsed("head", "long")["rows"][0]["values"]
    assert len(values["many"]["values"]) == 1000
    assert values["many"]["shape"] == [10**6]
    assert values["raw"]["bytes"] == 10**6
    assert len(values["raw"]["base64"]) < 1400


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@given(VALUES)
def test_whatever_a_row_holds_is_json(value: object) -> None:
    text = json.dumps(jsonable(value), allow_nan=False)
    assert text.isascii()
    assert len(value_text(value).splitlines()) == 1


def test_values_in_json_and_in_cells() -> None:
    found = jsonable(
        {
            "scalar": np.float32("nan"),
            "int": np.int64(3),
            "flag": np.bool_(True),
            "tensor": torch.tensor([[1.0, float("inf")]]),
            "empty": np.zeros((0, 2)),
            "texts": np.array(["a"]),
            "date": date(2026, 11, 23),
            "decimal": Decimal("1.50"),
        }
    )
    assert found == {
        "scalar": "NaN",
        "int": 3,
        "flag": True,
        "tensor": {"dtype": "float32", "shape": [1, 2], "values": [1.0, "Infinity"]},
        "empty": {"dtype": "float64", "shape": [0, 2], "values": []},
        "texts": {"dtype": "<U1", "shape": [1], "values": ["a"]},
        "date": "2026-11-23",
        "decimal": "1.50",
    }
    assert value_text(list(range(9))) == "[0, 1, 2, 3, 4, 5, … 9 in all]"
    assert [value_text(one) for one in (1 / 3, 0.5, np.float64(2 / 3), 1e300)] == [
        "0.333333",
        "0.5",
        "0.666667",
        "1e+300",
    ]


def test_a_store_of_other_files_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("of somebody")
    before = sorted(tmp_path.rglob("*"))
    assert said("ls", "other").endswith("holds no datasets\n")
    assert said("check", "-s", "other").endswith("holds no datasets\n")
    assert said("gc", "-s", "other", "--grace", "0", "--yes") == "there is nothing to delete\n"
    for arguments in (["info", "x"], ["copy", "x", "1", "backup"], ["tag", "x", "y", "1"], ["check", "x"]):
        assert run(*arguments, "-s", "other").exit_code == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_of_the_users_runs_unless_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("click", "rich", "images", "torchyoga", "json", "storage"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    yoga.Storage("data").submit([1], "images", "1", progress=False)
    assert said("head", "images", "-s", "data").startswith("row  value\n  0  1\n")
    for more in ((), ("fast",)):
        said_so = said("doctor", "images.py", *more, "-s", "data", code=2)
        assert f"write yoga doctor -- python {' '.join(('images.py', *more))}" in said_so
    assert "the format of 'images.py' is not recognised" in said(
        "append", "images", "2", "images.py", "-s", "data", code=2
    )
