"""What commands say when something cannot be done: in a line, as JSON, with the name that was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commanding import parsed, run, said

import torchyoga as yoga


@pytest.mark.damages("a manifest is cut on purpose")
def test_errors_have_kinds(storage: yoga.Storage) -> None:
    (storage.path / "numbers" / "1" / "manifest.json").write_text("{")
    for arguments, kind in (
        (["info", "numbers", "1"], "CorruptError"),
        (["info", "nosuch"], "NotFoundError"),
        (["info"], "UsageError"),
        (["nosuch"], "UsageError"),
        (["head", "images", "-c", "nosuch"], "KeyError"),
        (["rm", "images", "@prod"], "YogaError"),
    ):
        found = run(*arguments, "--json")
        assert json.loads(found.stdout)["kind"] == kind
        assert found.exit_code == (1 if kind == "CorruptError" else 2)


def test_json_behind_two_dashes_is_an_argument(storage: yoga.Storage) -> None:
    found = run("info", "--", "--json")
    assert found.exit_code == 2
    assert not found.stdout


def test_files_are_named_as_they_were_asked_for(storage: yoga.Storage, tmp_path: Path) -> None:
    for arguments, name in (
        (["report", "images", "-o", "nowhere/page.html"], "nowhere/page.html"),
        (["append", "images", "2", "nosuch.npy"], "nosuch.npy"),
        (["copy", "images", "1.0", "images.txt/deeper"], "images.txt"),
    ):
        (tmp_path / "images.txt").write_text("a file")
        found = run(*arguments)
        assert found.exit_code == 2, found.output
        assert name in found.stderr
        assert ".part" not in found.stderr
        assert "Errno" not in found.stderr


def test_a_file_for_findings_is_checked_before_the_examination(storage: yoga.Storage, tmp_path: Path) -> None:
    ended = run("doctor", "--output", str(tmp_path / "nowhere" / "x.json"), "true")
    assert ended.exit_code == 2
    assert "there is no directory" in ended.stderr


def test_tags_cannot_be_called_like_versions(storage: yoga.Storage) -> None:
    found = run("tag", "images", "1.0", "1.1")
    assert found.exit_code == 2
    assert "'1.0' is a version of 'images', so no tag may be called so" in found.stderr
    assert parsed("tag", "images")["tags"] == {"prod": "1.0"}
    with pytest.raises(ValueError, match="is a version of"):
        storage.tag("images", "1.1", "1.0")
    assert storage.tag("numbers", "1.1", "1").version == "1"  # of another dataset


def test_versions_are_in_natural_order_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = yoga.Storage("storage")
    remote = yoga.Storage("memory://natural", cache_dir=tmp_path / "cache")
    names = ["0", "1.2", "1.9", "1.10", "1.10-b", "1.10.2", "2", "10", "v1", "v9", "v10"]
    for name in sorted(names):
        storage.submit([int(name == "2")], "x", name, progress=False)
        storage.copy("x", name, to=remote)
    for each in (storage, remote):
        assert each.versions("x") == names
        assert each.list() == [("x", name) for name in names]
    assert said("ls") == f"id  versions\nx   {' '.join(names)}\n"
    assert parsed("ls")["datasets"][0]["versions"] == names
    assert [one["version"] for one in parsed("check", "--manifests")["checked"]] == names
    assert "'1.2', '1.9', '1.10'" in run("info", "x", "none").stderr


def test_columns_may_be_named_one_by_one(storage: yoga.Storage) -> None:
    wanted = said("head", "images", "2", "-c", "label,text")
    assert said("head", "images", "2", "-c", "label", "-c", "text") == wanted
    assert said("head", "images", "2", "-c", "label", "-c", "text,label") == wanted
    storage.submit([{"a,b": 1, "a": 2, "b": 3}], "commas", "1", progress=False)
    assert said("head", "commas", "-c", "a,b").splitlines()[0] == "row  a,b"
    assert said("head", "commas", "-c", "a", "-c", "b").splitlines()[0] == "row  a  b"


def test_rows_that_meet_a_condition(storage: yoga.Storage) -> None:
    numbers = [row["row"] for row in parsed("head", "images@1.0", "--where", "label = 2")["rows"]]
    assert numbers == [n for n in range(20) if n % 3 == 2][:10]
    found = parsed("head", "images@1.0", "2", "--where", "label = 2 and id > 6", "-c", "id", "--start", "4")
    assert [row["row"] for row in found["rows"]] == [8, 11]
    assert found["rows"][0]["values"] == {"id": 8}
    assert (found["where"], found["looked_until"]) == ("label = 2 and id > 6", 12)
    text = said("head", "images@1.0", "2", "--where", "label = 2", "-c", "id", "--start", "4")
    assert text == "row  id\n  5  5\n  8  8\n2 rows found in rows 4 to 8 of 20\n"
    assert said("head", "images@1.0", "--where", "id = 99") == "0 rows found of 20\n"
    assert said("head", "images@1.0", "--where", "id = 1", "--start", "99") == "images 1.0 has 20 rows\n"
    storage.submit([], "none", "1", progress=False)
    assert parsed("head", "none", "--where", "label = 2")["looked_until"] == 0
    assert "id" in run("head", "images", "--where", "nosuch = 1").stderr
    assert run("head", "images", "--where", "label = cat").exit_code == 2


def test_nothing_and_empty_texts_differ(storage: yoga.Storage) -> None:
    rows = [{"a": None, "b": ""}, {"a": "None", "b": " x"}, {"a": "x", "b": 'say "x"'}]
    storage.submit(rows, "texts", "1", progress=False)
    assert said("head", "texts").splitlines() == [
        "row  a       b",
        '  0  None    ""',
        '  1  "None"  " x"',
        '  2  x       say "x"',
        "rows 0 to 2 of 3",
    ]


def test_names_of_columns_are_those_of_the_rows(storage: yoga.Storage) -> None:
    rows = [{"名": f"row {n}", "größe": None if n else 3, "a b": np.zeros(2)} for n in range(3)]
    storage.submit(rows, "named", "1", progress=False)
    for command in ("info", "head"):
        text = said(command, "named")
        assert "名" in text
        assert "größe" in text
        assert "%" not in text
        assert "{" not in text
    assert [one["name"] for one in parsed("info", "named")["columns"]] == ["名", "größe", "a b"]
    assert said("head", "named", "1", "-c", "größe") == "row  größe\n  0  3\nrow 0 of 3\n"


def test_numbers_of_things_agree_with_their_names(storage: yoga.Storage) -> None:
    storage.submit([1], "one", "1", progress=False)
    assert "1 row, " in said("convert", "one", "1", "--format", "hdf5", "--to", "2")
