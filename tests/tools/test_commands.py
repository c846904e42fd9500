"""Each command on a real storage: what it prints, its JSON, and what it does."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commanding import on_terminal, parsed, run, said, timeless

import torchyoga as yoga
from torchyoga.tools.commands.group import command
from torchyoga.tools.commands.output import Asked, Table


def test_ls(storage: yoga.Storage) -> None:
    assert said("ls") == "id       versions\nimages   1.0 1.1\nnumbers  1\n"
    assert said("ls", "storage") == said("ls", "--storage", "storage") == said("ls")
    expected = {"id": "images", "versions": ["1.0", "1.1"]}
    assert parsed("ls") == {
        "storage": storage.url,
        "datasets": [expected, {"id": "numbers", "versions": ["1"]}],
    }
    lines = said("ls", "-l").splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["images", "1.1", "23"],
        ["images", "1.0", "20"],
        ["numbers", "1", "2"],
    ]
    assert lines[2].endswith("prod")
    found = parsed("ls", "-l")["versions"][1]
    assert found.keys() == {"id", "version", "rows", "bytes", "created", "tags", "problem"}
    assert (found["version"], found["rows"], found["tags"], found["problem"]) == ("1.0", 20, ["prod"], None)


def test_the_storage_and_json_may_stand_before_the_command(
    storage: yoga.Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = said("info", "images", "-s", "storage", "--json")
    monkeypatch.setenv("TORCHYOGA_STORAGE", "nowhere")
    assert said("-s", "storage", "--json", "info", "images") == expected
    assert said("--json", "-s", "elsewhere", "info", "images", "-s", "storage") == expected
    monkeypatch.setenv("TORCHYOGA_STORAGE", "storage")
    assert said("info", "images", "--json") == expected


def test_ls_of_a_store_and_of_nothing(storage: yoga.Storage, tmp_path: Path) -> None:
    remote = yoga.Storage("memory://commands", cache_dir=tmp_path / "cache")
    storage.copy("numbers", "1", to=remote)
    assert said("ls", "memory://commands") == "id       versions\nnumbers  1\n"
    assert parsed("info", "numbers", "-s", "memory://commands")["rows"] == 2
    (tmp_path / "empty").mkdir()
    assert said("ls", "empty") == f"{tmp_path / 'empty'} holds no datasets\n"
    assert parsed("ls", "empty")["datasets"] == []


def test_info(storage: yoga.Storage) -> None:
    text = timeless(said("info", "images@prod"))
    assert text.startswith(
        "id       images\nversion  1.0\ntags     prod\nrows     20\nfiles    1 lmdb file, "
    ), text
    assert "created  2026-11-23T12:00:00Z by ada\nmessage  crawl of May\n" in text
    assert text.endswith(
        "column  type           shape\nid      int\nimage   ndarray uint8  4x4\nlabel   int\ntext    str\n"
    )
    found = parsed("info", "images")
    assert (found["version"], found["rows"], found["parents"], found["tags"]) == ("1.1", 23, ["1.0"], [])
    assert found.keys() == {
        *("storage", "id", "version", "tags", "rows", "bytes", "created", "fingerprint", "columns"),
        *("files", "parents", "message", "lineage", "info"),
    }
    assert found["columns"][1] == {
        **{"name": "image", "kind": "ndarray", "dtype": "|u1", "shape": [4, 4]},
        "type": "ndarray uint8",
    }
    assert [(file["rows"], file["of"]) for file in found["files"]] == [(20, "1.0"), (3, None)]
    assert found["fingerprint"] == storage.fetch("images", "1.1").fingerprint


def test_head(storage: yoga.Storage) -> None:
    assert said("head", "images", "2") == (
        "row  id  image                        label  text\n"
        "  0  0   uint8 (4, 4): 0 0 0 0 0 0 …  0      text 0\n"
        "  1  1   uint8 (4, 4): 1 1 1 1 1 1 …  1      text 1\n"
        "rows 0 to 1 of 23\n"
    )
    assert said("head", "images@1.0", "--start", "19", "-c", "label,text") == (
        "row  label  text\n 19  1      text 19\nrow 19 of 20\n"
    )
    assert said("head", "images", "--version", "1.0", "--start", "99") == "images 1.0 has 20 rows\n"
    found = parsed("head", "images", "1", "--version", "@prod")
    assert (found["id"], found["version"], found["total"]) == ("images", "1.0", 20)
    assert found["rows"][0]["row"] == 0
    assert found["rows"][0]["values"]["image"] == {"dtype": "uint8", "shape": [4, 4], "values": [0] * 16}
    assert parsed("head", "numbers")["rows"][1]["values"] == {"x": "NaN"}


def test_log(storage: yoga.Storage) -> None:
    lines = timeless(said("log", "images")).splitlines()
    assert " ".join(lines[0].split()) == "version parent rows +rows bytes when who tags message"
    assert lines[1].startswith("1.1      1.0       23     +3")
    assert lines[1].endswith("crawl of June")
    assert lines[2].endswith("prod  crawl of May")
    assert said("log", "images", "-n", "1").endswith("\nand 1 older version\n")
    found = parsed("log", "images", "-n", "1")
    assert (found["id"], found["left_out"]) == ("images", 1)
    assert found["versions"][0].keys() == {
        *("version", "parents", "rows", "added", "bytes", "created", "fingerprint", "tags", "who", "code"),
        *("message", "problem"),
    }
    assert found["versions"][0]["parents"] == ["1.0"]


def test_diff_says_with_its_exit_code_whether_versions_differ(storage: yoga.Storage) -> None:
    assert said("diff", "images", "1.0", "1.1", "--key", "id", code=1) == (
        "20 rows -> 23 rows: 3 added, 0 removed, 0 changed, 20 unchanged\nadded: rows 20, 21, 22\n"
    )
    assert said("diff", "images", "@prod", "--most", "1", code=1).endswith("added: rows 20, ...\n")
    for names in (
        ["images@1.0", "images@1.1"],
        ["images@prod"],
        ["images@1.0", "1.1"],
        ["images", "images@1.0"],
    ):
        found = parsed("diff", *names, code=1)
        assert (found["old"], found["new"], found["added"]["count"]) == ("1.0", "1.1", 3)
    assert said("diff", "images", "1.0", "@prod") == (
        "20 rows -> 20 rows: 0 added, 0 removed, 20 unchanged\n"
    )
    storage.submit([{"id": 0, "label": 5}, {"id": 2, "label": 0}], "a", "1", progress=False)
    storage.submit([{"id": 2, "label": 9}, {"id": 0, "label": 5}], "a", "2", progress=False)
    found = parsed("diff", "a", "1", "2", "-k", "id", code=1)
    assert found["changed"] == {"count": 1, "rows": [[1, 0]]}
    assert said("diff", "a", "1", "2", "-k", "id", code=1).endswith("changed: rows 1 -> 0\n")
    assert found.keys() == {
        *("id", "old", "new", "same", "rows", "rows_compared", "unchanged", "added", "removed", "changed"),
        "columns",
    }
    assert found["same"] is False
    assert found["rows"] == {"old": 2, "new": 2}
    storage.submit([{"id": 0}], "a", "3", progress=False)
    assert "since their columns differ; pass --key to compare" in said("diff", "a", "1", "3", code=1)
    text = said("head", "a", code=2)
    assert text.endswith(
        "name the version to read, or the one to append to; or give one a tag and fetch that\n"
    )


def test_tag(storage: yoga.Storage) -> None:
    assert said("tag", "images") == "tag   version\nprod  1.0\n"
    assert parsed("tag", "images") == {"id": "images", "tags": {"prod": "1.0"}}
    assert "reviewed" in said("tag", "images", "prod", "1.1", "-m", "reviewed")
    assert storage.tags("images") == {"prod": "1.1"}
    said("tag", "images", "old", "1.0")
    said("tag", "images", "stable", "@prod")
    assert storage.tags("images") == {"old": "1.0", "prod": "1.1", "stable": "1.1"}
    assert "taken away" in said("tag", "images", "prod", "--remove")
    found = parsed("tag", "images", "prod")
    assert [move["version"] for move in found["moves"]] == ["1.0", "1.1", None]
    assert found["moves"][0].keys() == {"number", "version", "fingerprint", "when", "who", "message"}
    assert said("tag", "numbers") == "numbers has no tags\n"
    assert "--remove takes no version" in said("tag", "images", "old", "1.0", "--remove", code=2)


def test_check_of_whole_versions(storage: yoga.Storage) -> None:
    assert said("check", "images") == "id      version  state\nimages  1.1      ok\n"
    assert said("check", "images", "--all").count(" ok") == 2
    assert said("check").count(" ok") == said("check", "--manifests").count(" ok") == 3
    found = parsed("check", "--manifests")
    assert found.keys() == {"storage", "read", "checked"}
    assert found["checked"][0] == {"id": "images", "version": "1.0", "ok": True, "problem": None}
    assert "leave it or the version out" in said("check", "images", "1.0", "--all", code=2)


@pytest.mark.damages("files are cut on purpose")
def test_check_names_what_is_damaged(storage: yoga.Storage) -> None:
    file = next((storage.path / "images" / "1.0").glob("*.mdb"))
    whole = bytearray(file.read_bytes())
    whole[whole.index(b"text 0")] ^= 1
    file.write_bytes(whole)
    text = said("check", "images", "1.0", code=1)
    assert "images  1.0      damaged\n" in text
    assert file.name in text
    assert said("check", "images", "1.0", "--manifests").endswith("ok\n")
    manifest = storage.path / "numbers" / "1" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"rows": 2', b'"rows": 3'))
    found = parsed("check", "--manifests", code=1)
    assert [one["ok"] for one in found["checked"]] == [True, True, False]
    assert "numbers" in found["checked"][2]["problem"]
    assert "damaged: " in said("ls", "-l")
    assert said("info", "numbers", "1", code=1).startswith("error: ")


def test_convert_and_copy(storage: yoga.Storage, tmp_path: Path) -> None:
    before = storage.fetch("images", "1.1").fingerprint
    found = parsed("convert", "images", "--format", "hdf5", "--compression", "gzip", "--to", "1.1h")
    assert found.keys() == {"storage", "id", "version", "rows", "bytes", "fingerprint"}
    assert (found["version"], found["rows"], found["fingerprint"]) == ("1.1h", 23, before)
    assert parsed("info", "images", "1.1h")["files"][0]["format"] == "hdf5"
    assert said("convert", "images", "1.1", "--format", "hdf5").startswith("images 1.1 in ")
    assert "one of 'lmdb', 'hdf5'" in said("convert", "images", "--format", "zip", code=2).replace('"', "'")
    where = tmp_path / "backup"
    assert said("copy", "images@prod", "backup").startswith(f"images 1.0 in {where}: 20 rows")
    assert parsed("copy", "images", "1.1h", "backup")["storage"] == str(where)
    assert said("ls", "backup") == "id      versions\nimages  1.0 1.1h\n"
    storage.submit([1], "images", "9", progress=False)
    yoga.Storage("backup").submit([2], "images", "9", progress=False)
    text = said("copy", "images", "9", "backup", code=2)
    assert "is published already in" in text
    assert "choose another version, or pass --overwrite" in text
    said("copy", "images", "9", "backup", "--overwrite")
    assert "name the directory" in said("copy", "images", code=2)
    assert "9 is a version of images: name the directory or URL" in said("copy", "images", "9", code=2)
    assert not Path("9").exists()
    assert said("copy", "images@prod", "./9").startswith("images 1.0 in ")


def test_rm_deletes_what_no_tag_names(storage: yoga.Storage) -> None:
    own = sum(path.stat().st_size for path in (storage.path / "images" / "1.1").glob("*.mdb"))
    found = parsed("rm", "images", "1.1", "--dry-run")
    assert found == {
        **{"storage": storage.url, "id": "images", "version": "1.1"},
        **{"deleted": False, "bytes": own},
    }
    assert "would be deleted" in said("rm", "images", "1.1", "--dry-run")
    for arguments in (["1.0"], ["@prod"], ["1.0", "--dry-run"]):
        text = said("rm", "images", *arguments, code=2)
        assert "'images' '1.0'" in text
        assert "has the tags ['prod'], so it was not removed; tag another version" in text
        assert text.endswith("or pass --force\n")
    assert storage.versions("images") == ["1.0", "1.1"]
    assert parsed("rm", "images", "1.1")["deleted"] is True
    assert said("rm", "images", "@prod", "--force").startswith(f"images 1.0 in {storage.url}: deleted, ")
    assert "there is no dataset 'images'" in said("rm", "images", "1.0", code=2)
    assert "Missing argument" in said("rm", "numbers", code=2)
    assert [*(storage.path / "images").rglob("*.mdb")] == []


def test_convert_without_a_format_writes_files_of_its_own(storage: yoga.Storage) -> None:
    before = storage.fetch("images", "1.1").fingerprint
    text = said("convert", "images", "--to", "1.0", code=2)
    assert text.endswith("fetch it, or choose another version\n")
    assert storage.versions("images") == ["1.0", "1.1"]
    found = parsed("convert", "images", "1.1", "--to", "2")
    assert (found["version"], found["fingerprint"]) == ("2", before)
    assert said("convert", "images", "1.1").startswith("images 1.1 in ")
    assert len(parsed("info", "images", "1.1")["files"]) == 1


def test_append_of_files_of_each_kind(storage: yoga.Storage) -> None:
    last = "1.1"

    def appended(*source: str) -> list[dict[str, object]]:
        nonlocal last
        new = f"{last}.1"
        found = parsed("append", "images", new, *source, "--after", last, "-m", "more")
        ref, rows = storage.fetch("images", new), parsed("info", "images", last)["rows"]
        assert found["rows"] == len(ref)
        assert ref[:rows].stats()["id"].max is not None
        last = new
        return [dict(row) for row in ref[rows:]]

    found = appended("rows.jsonl")
    assert [(row["id"], row["text"]) for row in found] == [(90, "from JSON"), (91, "from JSON")]
    assert np.array_equal(np.asarray(found[0]["image"]), np.ones((4, 4)))
    Path("rows.jsonl.gz").write_bytes(gzip.compress(Path("rows.jsonl").read_bytes()))
    assert [row["id"] for row in appended("rows.jsonl.gz")] == [90, 91]

    storage.submit({"id": np.arange(2), "label": np.arange(2)}, "arrays", "1", progress=False)
    table = pa.table({"id": [5, 6], "label": [0, 1]})
    pq.write_table(table, "a.parquet")
    pq.write_table(table, "b.parquet")
    np.save("ids.npy", np.arange(3))
    Path("s.ndjson").write_text('{"id": 1, "label": 2}\n')
    files = (["a.parquet", "b.parquet"], ["more.h5"], ["s.ndjson"])
    added = []
    for number, source in enumerate(files):
        before = parsed("info", "arrays")["rows"]
        found = parsed("append", "arrays", f"2.{number}", *source)
        added.append(found["rows"] - before)
    assert added == [4, 2, 1]
    numbers = [int(row["id"]) for row in storage.fetch("arrays", "2.2")]
    assert numbers == [0, 1, 5, 6, 5, 6, 40, 41, 1]
    storage.submit(np.arange(3), "bare", "1", progress=False)
    assert parsed("append", "bare", "2", "ids.npy", "ids.npy")["rows"] == 9


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (["nothing.jsonl"], "there is nothing under 'nothing.jsonl'"),
        (["nothing.npy"], "there is nothing under 'nothing.npy'"),
        (["nothing.parquet"], "nothing.parquet"),
        (["nothing.h5"], "nothing.h5"),
        (["rows.txt"], "there is nothing under 'rows.txt'"),
        (["rows.jsonl", "more.h5"], "files of one kind at a time, found hdf5 and jsonl"),
        (["broken.jsonl"], "broken.jsonl, line 2: "),
        (["other.jsonl"], "lable"),
        (["empty.jsonl"], "empty.jsonl: there are no rows"),
        (["empty.npy"], "empty.npy has no rows, so there is nothing to append"),
        ([], "SOURCE"),
    ],
)
def test_append_of_what_cannot_be_appended(storage: yoga.Storage, source: list[str], message: str) -> None:
    Path("broken.jsonl").write_text(Path("rows.jsonl").read_text().splitlines()[0] + '\n{"id": \n')
    Path("empty.jsonl").write_text("\n")
    np.save("empty.npy", np.zeros(0, np.int64))
    Path("other.jsonl").write_text('{"id": 1, "image": [[0]], "lable": 1, "text": ""}\n')
    text = said("append", "images", "2", *source, code=1 if source == ["broken.jsonl"] else 2)
    assert message in text
    assert text.startswith("error: ")
    assert len(text.splitlines()) <= 2
    assert "Errno" not in text
    assert storage.versions("images") == ["1.0", "1.1"]


def test_gc_deletes_only_when_told(storage: yoga.Storage) -> None:
    assert said("gc") == "there is nothing to delete\n"
    storage.convert("images", "1.1", format="hdf5", to="1.2")
    storage.convert("images", "1.2", to="1.3")
    left = storage.path / "numbers" / "1" / "00000000deadbeef-00000.part"
    left.write_bytes(b"x" * 100)
    found = parsed("gc", "images", "--keep", "1", "--grace", "0")
    assert found.keys() == {"storage", "deleted", "bytes", "things"}
    assert found["deleted"] is False
    names = {thing["name"] for thing in found["things"]}
    assert names == {"images/1.1"}
    assert said("gc", "--grace", "0").endswith("1 item, 100 B, could be deleted; --yes deletes it\n")
    assert storage.versions("images") == ["1.0", "1.1", "1.2", "1.3"]
    assert left.exists()
    assert said("gc", "--keep", "1", "--grace", "0", "--yes").endswith(", deleted\n")
    assert storage.versions("images") == ["1.0", "1.2", "1.3"]  # 1.0 has a tag
    assert not left.exists()
    said("gc", "--keep", "1", "--grace", "0", "--untagged", "-y")
    assert storage.versions("images") == ["1.2", "1.3"]
    assert "say with --keep" in said("gc", "--untagged", code=2)
    assert "no dataset 'imags'" in said("gc", "imags", code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "imags"], "there is no dataset 'imags' in {}: the storage holds 'images', 'numbers'"),
        (["log", "image"], "there is no dataset 'image' in {}: the storage holds 'images', 'numbers'"),
        (["info", "images", "1.10"], "'images' has no version '1.10' in {}: its versions are '1.1', '1.0'"),
        (["check", "images", "2"], "'images' has no version '2' in {}: its versions are '1.0', '1.1'"),
        (
            ["info", "images@2.0"],
            "'images' has neither a version nor a tag '2.0' in {}: its versions are '1.0', '1.1'; its "
            "tags are 'prod'",
        ),
        (["diff", "images", "2.0@x"], "'images' has no version '2.0@x'"),
        (["diff", "images@1.0", "1.0", "1.1"], "names a version already"),
        (["diff", "images"], "name the version to compare with, as in images 1.0"),
        (["head", "images", "-c", "lable"], "there is no column 'lable'; there are 'label', 'id'"),
        (["diff", "images", "1.0", "--key", "di"], "there is no column 'di'"),
        (["lss"], "there is no command 'lss'; did you mean ls?"),
        (["xyz"], "there is no command 'xyz'"),
        (["tag", "images", "prodd"], "'images' has no tag 'prodd'"),
        (["ls", "nowhere"], "the storage 'nowhere' is not there"),
        (["ls", "rows.jsonl"], "the storage 'rows.jsonl' is a file"),
        (["ls", "xyz://bucket"], "xyz"),
        (["head", "images", "0"], "0 is not in the range"),
        (["head", "images", "1.0"], "'1.0' is not a valid number of rows; a version is named by ID@VERSION"),
        (["head", "images", "--nosuch"], "--nosuch"),
        (["rm", "images", "@prod"], "pass --force"),
        (["info"], "Missing argument"),
        (["append", "images", "1.1", "rows.jsonl"], "'images' '1.1' is published already"),
        (
            ["append", "images", "1.1", "rows.jsonl", "--after", "1.0"],
            "fetch it, or choose another version\n",
        ),
    ],
)
def test_what_is_asked_wrongly_is_said_in_two_lines(
    storage: yoga.Storage, arguments: list[str], message: str
) -> None:
    text = said(*arguments, code=2)
    assert message.format(storage.url) in text
    assert text.startswith("error: ")
    assert len(text.splitlines()) <= 2
    assert run(*arguments).stdout == ""
    found = run(*arguments, "--json")
    error = json.loads(found.stdout)
    assert found.stderr == text
    assert error == {"error": text.removeprefix("error: ").strip(), "kind": error["kind"], "exit_code": 2}


def test_a_tag_of_a_removed_version_is_said(storage: yoga.Storage) -> None:
    storage.remove("images", "1.0", force=True)
    assert "names version '1.0' since" in said("info", "images@prod", code=2)


def test_an_id_may_hold_the_sign_of_a_tag(storage: yoga.Storage) -> None:
    storage.submit([1, 2], "a@b", "1", progress=False)
    storage.submit([1, 2, 3], "a", "@x", progress=False)
    assert parsed("info", "a@b")["id"] == "a@b"
    assert parsed("info", "a", "@x")["version"] == "@x"


def test_a_traceback_is_shown_only_with_debug(storage: yoga.Storage) -> None:
    assert isinstance(run("--debug", "info", "imags").exception, yoga.errors.NotFoundError)


def test_tables_fit_the_terminal_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(f"word{n}" for n in range(30))
    table = Table(("id", "text", "rows"), [("images", text, "1,000"), ("x", "y", "2")], right=("rows",))
    for width in (10, 40, 80, 300):  # the first breaks lines by itself
        shown = on_terminal(monkeypatch, width, lambda: Asked("", False).write({}, ["all", table]))
        lines = shown.splitlines()
        assert lines[0] == "all"
        assert max(map(len, lines)) <= max(width, 40)
        assert lines[1].split() == ["id", "text", "rows"]
        assert set(shown.split()) == set(f"all id text rows images {text} 1,000 x y 2".split())
    assert [line.rstrip() for line in lines] == [
        "all",
        f"id      {'text':{len(text)}}   rows",
        f"images  {text}  1,000",
        f"x       {'y':{len(text)}}      2",
    ]


def test_commands_on_terminals(storage: yoga.Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    def show() -> None:
        with pytest.raises(SystemExit) as ended:
            command.main(["log", "images"], prog_name="yoga")
        assert ended.value.code == 0

    lines = timeless(on_terminal(monkeypatch, 200, show)).splitlines()
    assert lines[0].split()[:6] == ["version", "parent", "rows", "+rows", "bytes", "when"]
    assert lines[1].rstrip().endswith("2026-11-23 12:00:00  ada        crawl of June")
