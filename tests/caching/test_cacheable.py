"""A call reads what it would have made: changed arguments, code and rows are detected."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import logging
import random
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import run_program
from damaged import resealed
from test_code import loaded
from waiting import PATIENCE

import torchyoga as yoga
from torchyoga.errors import BusyError, ExistsError

numbers = itertools.count()


@pytest.fixture
def storage(tmp_path: Path) -> yoga.Storage:
    return yoga.Storage(tmp_path / "storage")


def rows_of(train: bool = True, count: int = 3) -> list[int]:
    return list(range(count)) if train else list(range(100, 100 + count))


def manifest_of(storage: yoga.Storage, id: str, version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((storage.path / id / version / "manifest.json").read_bytes())
    return found


# -- arguments


def test_a_version_is_not_read_for_other_arguments(storage: yoga.Storage) -> None:
    mnist = storage.cacheable("mnist", "1")(rows_of)
    assert (
        list(mnist(train=True))
        == list(mnist(True))
        == list(mnist())
        == list(mnist(True, count=3))
        == [0, 1, 2]
    )
    for call in (
        lambda: mnist(train=False),
        lambda: mnist(False),
        lambda: mnist(1),
        lambda: mnist("True"),
        lambda: mnist(train=None),
    ):
        text = r"'mnist' '1' is published already, made with another train than"
        with pytest.raises(ExistsError, match=text):
            call()
    text = r"another train and another count than .*ignore=\['train', 'count'\]"
    with pytest.raises(ExistsError, match=text):
        mnist(False, 4)
    with pytest.raises(TypeError, match="unexpected keyword argument 'test'"):
        mnist(test=True)
    assert list(mnist()) == [0, 1, 2]
    assert storage.list() == [("mnist", "1")]


def test_arguments_choose_id_and_version(storage: yoga.Storage) -> None:
    calls = []

    @storage.cacheable("mnist-{train}", "{{1}}.{count}")
    def mnist(train: bool, count: int = 2, seed: int = 0) -> Any:
        calls.append((train, count))
        return rows_of(train, count)

    assert [list(mnist(True)), list(mnist(train=False)), list(mnist(True, 1)), list(mnist(True))] == [
        [0, 1],
        [100, 101],
        [0],
        [0, 1],
    ]
    assert calls == [(True, 2), (False, 2), (True, 1)]
    assert storage.list() == [("mnist-False", "{1}.2"), ("mnist-True", "{1}.1"), ("mnist-True", "{1}.2")]
    assert list(storage.fetch("mnist-True", "{1}.1")) == [0]
    with pytest.raises(ExistsError, match="another seed"):
        mnist(True, seed=1)
    assert mnist.__wrapped__(True, 1) == [0]  # type: ignore[attr-defined]


def test_two_calls_that_make_one_name_are_told_apart(storage: yoga.Storage) -> None:
    @storage.cacheable("{one}-{other}", "1")
    def made(one: str, other: str) -> Any:
        return [one, other]

    assert list(made("a-b", "c")) == ["a-b", "c"]
    message = (
        "'a-b-c' '1' is published already, made with another one and another other than .*make the same "
        "id and version.*another separator"
    )
    with pytest.raises(ExistsError, match=message) as caught:
        made("a", "b-c")
    assert "{one}" not in str(caught.value)  # the message names it


def test_equal_texts_of_different_types_are_different_values(storage: yoga.Storage) -> None:
    @storage.cacheable("a-{x}", "1", stale="ignore")
    def made(x: Any) -> Any:
        return [str(type(x))]

    for value, others in {1: ["1", np.int64(1)], 0.5: ["0.5", np.float32(0.5)], "True": [True]}.items():
        assert list(made(value)) == [str(type(value))]
        for other in others:  # type: ignore[attr-defined]
            with pytest.raises(ExistsError, match=r"made with another x than .*same text.*another type"):
                made(other)
        assert list(made(value)) == [str(type(value))]
    path = storage.path / "a-1" / "1" / "manifest.json"
    content = json.loads(path.read_bytes())
    assert content["function"]["arguments"].keys() == {"{x}", "{x}: value"}
    # A version that records only the text.
    del content["function"]["arguments"]["{x}: value"]
    path.write_bytes(resealed(content))
    assert list(made("1")) == list(made(1))


@pytest.mark.parametrize(
    ("id", "found"),
    [
        ("{test}", "'test'"),
        ("{}", "''"),
        ("{0}", "'0'"),
        ("{train.__class__}", "'train.__class__'"),
        ("{train[0]}", r"'train\[0\]'"),
        ("{train!r}", "'train' with a format"),
        ("{train:>9}", "'train' with a format"),
        ("{train:{count}}", "'train' with a format"),
        ("{", "Single"),
        ("}", "Single"),
        ("{train", "expected '}'"),
    ],
)
def test_braces_that_name_no_argument_are_refused_when_a_function_is_decorated(
    storage: yoga.Storage, id: str, found: str
) -> None:
    for names in ({"id": id, "version": "1"}, {"id": "a", "version": id}):
        message = r"rows_of, \['train', 'count'\]; for braces themselves write {{ and }}.*" + found
        with pytest.raises(ValueError, match=message):
            storage.cacheable(**names)(rows_of)
    assert storage.list() == []


def test_ignored_arguments_may_be_anything(storage: yoga.Storage) -> None:
    @storage.cacheable("a", "1", ignore=["token", "hook"])
    def made(token: str, count: int = 2, hook: Any = None) -> Any:
        return [count]

    assert list(made("secret", hook=lambda: 1)) == list(made(token="other", hook=object())) == [2]
    with pytest.raises(ExistsError, match=r"another count than .*ignore=\['count'\]"):
        made("secret", 3)
    text = r"ignore names \['tokne'\], but rows_of has the arguments \['train', 'c"
    with pytest.raises(ValueError, match=text):
        storage.cacheable("a", "1", ignore=["tokne"])(rows_of)
    with pytest.raises(TypeError, match=r"ignore must be names of arguments, such as \['token'\]"):
        storage.cacheable("a", "1", ignore="token")(rows_of)


def test_no_value_of_an_argument_is_written(storage: yoga.Storage) -> None:
    storage.cacheable("a", "1")(lambda root, number: [1])("/home/me/secret-folder", 123456789)
    for path in storage.path.rglob("*"):
        if path.is_file():
            assert b"secret-folder" not in path.read_bytes()
            assert b"123456789" not in path.read_bytes()
    storage.cacheable("b", "1")(lambda root, number: [1])("/home/me/secret-folder", 123456789)
    one, other = (manifest_of(storage, id, "1")["function"]["arguments"] for id in "ab")
    assert one.keys() == other.keys() == {"root", "number"}
    assert not {*one.values()} & {*other.values()}  # digests of two versions cannot be compared


def test_lists_and_dicts_of_arguments(storage: yoga.Storage) -> None:
    @storage.cacheable("a", "1", ignore=["token"])
    def made(first: int, /, *more: int, last: int = 0, **options: Any) -> Any:
        return [first, *more, last]

    expected = [1, 2, 3, 4]
    assert list(made(1, 2, 3, last=4, size=5, mode="x")) == expected
    assert list(made(1, 2, 3, last=4, mode="x", size=5, token="t")) == expected
    for change, call in {
        "first": lambda: made(0, 2, 3, last=4, size=5, mode="x"),
        "more": lambda: made(1, 2, last=4, size=5, mode="x"),
        "last": lambda: made(1, 2, 3, size=5, mode="x"),
        "size": lambda: made(1, 2, 3, last=4, size=6, mode="x"),
        "mode": lambda: made(1, 2, 3, last=4, size=5),
        "new": lambda: made(1, 2, 3, last=4, size=5, mode="x", new=None),
    }.items():
        with pytest.raises(ExistsError, match=f"made with another {change} than"):
            call()
    storage.cacheable("b", "1")(lambda a, /, **b: [a])(1, a=2)
    with pytest.raises(ExistsError, match="made with another a than"):
        storage.cacheable("b", "1")(lambda a, /, **b: [a])(1, a=3)


@dataclasses.dataclass
class Config:
    count: int
    workers: int = dataclasses.field(default=0, compare=False)

    def rows(self, offset: int) -> list[int]:
        return [self.count + offset]

    def __call__(self) -> list[int]:
        return [self.count]


class Plain:
    def rows(self, offset: int) -> list[int]:
        return [offset]


def test_arguments_may_have_any_name(storage: yoga.Storage) -> None:
    @storage.cacheable("{id}", "{version}")
    def made(id: str, version: str, self: int, function: int, args: int, kwargs: int) -> Any:
        return [id, version]

    values = {"self": 1, "function": 2, "args": 3, "kwargs": 4}
    assert list(made(id="a", version="1", **values)) == list(made("a", "1", 1, 2, 3, 4)) == ["a", "1"]
    with pytest.raises(ExistsError, match="another kwargs than"):
        made("a", "1", **{**values, "kwargs": 5})


def test_methods_partials_and_callable_objects(storage: yoga.Storage) -> None:
    same: list[tuple[str, Callable[[], Any], Callable[[], Any], Callable[[], Any]]] = [
        ("train", partial(rows_of, True), partial(rows_of, train=True), partial(rows_of, False)),
        (
            "count",
            partial(partial(rows_of, True), count=5),
            partial(rows_of, True, 5),
            partial(rows_of, True, 6),
        ),
        (
            "self",
            partial(Config(1).rows, 2),
            partial(Config(1, workers=9).rows, offset=2),
            partial(Config(2).rows, 2),
        ),
        ("self", Config(1), Config(1, workers=3), Config(3)),
        ("count", lambda count=1: [count], lambda count=1: [count], lambda count=2: [count]),
    ]
    for version, (name, first, equal, other) in enumerate(same):
        made = list(storage.cacheable("a", str(version))(first)())
        assert list(storage.cacheable("a", str(version))(equal)()) == made
        with pytest.raises(ExistsError, match=f"made with another {name} than"):
            storage.cacheable("a", str(version))(other)()

    class Experiment:
        @storage.cacheable("method-{size}", "1", ignore=["self"])
        def data(self, size: int) -> Any:
            return [size]

    assert [list(Experiment().data(size)) for size in (1, 2, 1)] == [[1], [2], [1]]


def test_an_argument_without_a_digest_is_an_error_before_anything_is_built(storage: yoga.Storage) -> None:
    calls = []

    @storage.cacheable("a-{name}", "1")
    def made(transform: Any = None, name: Any = "n") -> Any:
        calls.append(transform)
        return [1]

    class Local:
        pass

    for odd in (
        lambda x: x,
        Local(),
        Local,
        [1, Local()],
        {"a": Local()},
        Plain().rows,
        iter([]),
        torch.nn.ReLU(),
    ):
        text = r"made: nothing shows .* same 'transform'.*ignore=\['transform'\]"
        with pytest.raises(TypeError, match=text) as caught:
            made(odd)
        assert "{transform}" not in str(caught.value)  # these would be refused as well
        with pytest.raises(TypeError, match=r"made: \{name\} in id or version is a .*pass text or a number"):
            made(name=odd)
    for odd in ({1, 2}, {"a": 1}, np.zeros(3), torch.zeros(3)):
        with pytest.raises(TypeError, match=r"made: \{name\} in id or version is a .*pass text or a number"):
            made(name=odd)
    with pytest.raises(TypeError, match="cacheable decorates functions, found a int"):
        storage.cacheable("a", "1")(5)  # type: ignore[arg-type]
    assert calls == []
    assert storage.list() == []
    for name in ((28, 28), Path("x"), None, np.int64(3), torch.float32):
        made(name=name)
    assert [id for id, _ in storage.list()] == ["a-(28, 28)", "a-3", "a-None", "a-torch.float32", "a-x"]


def test_a_version_without_a_record_gives_one_warning_or_an_error(storage: yoga.Storage) -> None:
    def made() -> list[int]:
        return [1]

    storage.submit([5], "a", "1")
    strict = storage.cacheable("a", "1", stale="error")(made)
    message = r"'a' '1' does not say what made it.*storage.remove\('a', '1'\)"
    for _ in range(2):
        with pytest.raises(ExistsError, match=message) as caught:
            strict()
    assert "could not be compared" not in str(caught.value)  # there are no arguments
    text = "'a' '1' does not say what made it.*, so train, count could not be compared.*read as it is"
    lenient = storage.cacheable("a", "1")(rows_of)
    with pytest.warns(UserWarning, match=text):
        assert list(lenient()) == [5]
    for other in (lenient, storage.cacheable("a", "1")(rows_of)):
        assert list(other()) == [5]  # warned once, whatever call asks
    assert list(storage.cacheable("a", "1", stale="ignore")(made)()) == [5]
    storage.remove("a", "1")
    assert list(strict()) == list(strict()) == [1]
    storage.submit([7], "a", "1", overwrite=True)
    with pytest.raises(ExistsError, match=message):
        strict()
    with pytest.warns(UserWarning, match="does not say what made it"):  # another one
        assert list(storage.cacheable("a", "1")(made)()) == [7]


def test_the_advice_in_error_messages_works(storage: yoga.Storage) -> None:
    def made(transform: Any = None, size: Any = 1, **options: Any) -> Any:
        return [1]

    storage.cacheable("a", "1")(made)()
    for given, nameable in (
        ({"size": 2}, True),
        ({"size": {"a": 1}}, False),
        ({"transform": np.zeros(2)}, False),
        ({"lr": 1}, False),
        ({"size": 2, "lr": 1}, True),
    ):
        with pytest.raises(ExistsError, match="made with another") as caught:
            storage.cacheable("a", "1")(made)(**given)
        text = str(caught.value)
        assert ("{size}" in text) is nameable
        assert text.count("{") == nameable
        names = sorted(given, reverse=True)
        assert f"ignore={names}" in text
        assert list(storage.cacheable("a", "1", ignore=names)(made)(**given)) == [1]
        if nameable:
            storage.cacheable("a-{size}", str(len(given)))(made)(**given)


def test_the_error_for_a_wrong_call_names_the_function(storage: yoga.Storage) -> None:
    made = storage.cacheable("a", "1")(lambda size: [size])
    named = storage.cacheable("a", "1")(rows_of)
    for call, message in (
        (lambda: made(), "<lambda>: missing a required argument: 'size'"),
        (lambda: named(test=1), "rows_of: got an unexpected keyword argument 'test'"),
        (lambda: named(1, 2, 3), "rows_of: too many positional arguments"),
    ):
        with pytest.raises(TypeError, match=message):
            call()  # type: ignore[no-untyped-call]


def test_methods_of_classes_are_decorated_below(storage: yoga.Storage) -> None:
    for kind in (staticmethod, classmethod):
        with pytest.raises(TypeError, match=f"put @cacheable below @{kind.__name__}"):
            storage.cacheable("a", "1")(kind(rows_of))

    class Below:
        @staticmethod
        @storage.cacheable("a", "1")
        def one(size: int = 1) -> Any:
            return [size]

        @classmethod
        @storage.cacheable("b", "1")
        def two(cls, size: int = 1) -> Any:
            return [size]

    # The class is an argument, and a class within a function has no name to identify it.
    assert list(Below.one()) == list(Below().one()) == [1]
    with pytest.raises(TypeError, match=r"two: nothing shows .* the same 'cls'.*ignore=\['cls'\]"):
        Below.two()


def test_arguments_that_come_and_go(storage: yoga.Storage) -> None:
    """The functions differ, as their code shows; the arguments that can be compared are."""
    decorated = partial(storage.cacheable, "a", "1", stale="ignore")
    decorated()(lambda train: [train])(True)
    assert list(decorated()(lambda train, size=28: [train])(True)) == [True]
    assert list(decorated()(lambda size=28, *more, train, **rest: [train])(train=True)) == [True]
    with pytest.raises(ExistsError, match="another size than"):
        decorated()(lambda train, size=28: [train])(True, size=29)
    with pytest.raises(ExistsError, match="another size than"):
        decorated()(lambda train, size: [train])(True, 28)
    assert list(decorated()(lambda: [1])()) == [True]
    with pytest.raises(ExistsError, match="another train than"):
        decorated()(lambda **rest: [1])()
    # The argument that a template names now chose the version before as well.
    chosen = storage.cacheable("{name}", "1", stale="ignore")(lambda name, train, size=0: [1])
    assert list(chosen("a", True)) == [True]
    with pytest.raises(ExistsError, match="another train than"):
        chosen("a", False)


class Breaks(torch.utils.data.Dataset[Any]):
    """Rows that say which call made them; one of them cannot be read."""

    def __init__(self, kind: Any, at: int | None, read: list[int]) -> None:
        self.kind, self.at, self.read = kind, at, read

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            raise OSError("offline")
        self.read.append(index)
        return self.kind if index % 100 == 7 else index  # few rows differ, so comparisons seldom show it


def test_an_interrupted_build_is_continued_with_the_same_arguments_only(
    storage: yoga.Storage, caplog: pytest.LogCaptureFixture
) -> None:
    broken_at: list[int | None] = [None]
    read: list[int] = []

    def made(kind: Any, root: str = "", **more: Any) -> Any:
        return Breaks(kind if type(kind) is int else -int(kind), broken_at[0], read)

    def build(version: str, *args: Any, **kwargs: Any) -> Any:
        return storage.cacheable("a", version, ignore=["root"])(made)(*args, **kwargs)

    cases: list[tuple[Callable[[str], Any], Callable[[str], Any], Any, str | None]] = [
        (lambda v: build(v, 0), lambda v: build(v, -1), -1, "another kind"),
        (lambda v: build(v, 0), lambda v: build(v, 0, size=1), 0, "another size"),
        (lambda v: build(v, 0), lambda v: build(v, kind=0, root="elsewhere"), 0, None),
        (
            lambda v: storage.cacheable("a-{kind}", v)(made)(np.int64(1)),
            lambda v: storage.cacheable("a-{kind}", v)(made)(1),
            1,
            "another kind",
        ),
        (lambda v: storage.submit(Breaks(0, 900, read), "a", v), lambda v: build(v, -1), -1, "no record of"),
        (lambda v: build(v, 0), lambda v: storage.submit(Breaks(-1, None, read), "a", v), -1, "a function"),
    ]
    for version, (first, second, kind, reason) in enumerate(cases):
        for _ in range(3):  # the rows to compare are drawn at random
            broken_at[0] = 900
            with pytest.raises(OSError, match="offline"):
                first(str(version))
            broken_at[0] = None
            read.clear()
            caplog.clear()
            with caplog.at_level(logging.INFO, "torchyoga"):
                ref = second(str(version))
            (record,) = (found for found in caplog.records if "interrupted build" in found.message)
            assert list(ref)[7::100] == [kind] * 10
            if reason is None:
                assert "continuing an interrupted build at row 900" in record.message
                assert len(read) < 300
            else:
                assert record.levelno == logging.WARNING
                assert "starting over" in record.message
                assert reason in record.message
                assert set(read) == set(range(1000))
            storage.remove(*next((id, v) for id, v in storage.list() if v == str(version)))


def test_records_go_with_conversions_and_copies(storage: yoga.Storage, tmp_path: Path) -> None:
    storage.cacheable("a", "1")(rows_of)()
    storage.convert("a", "1", format="hdf5")
    storage.convert("a", "1", to="2")
    other = yoga.Storage(tmp_path / "other")
    storage.copy("a", "2", to=other)
    for where, version in ((storage, "1"), (storage, "2"), (other, "2")):
        made = where.cacheable("a", version)(rows_of)
        assert list(made(True)) == [0, 1, 2]
        with pytest.raises(ExistsError, match="another train than"):
            made(False)


# -- code

WRITTEN = """
import functools
def rows(count):
    return list(range(count))
"""


def test_a_function_whose_code_has_changed_gives_a_warning(storage: yoga.Storage, tmp_path: Path) -> None:
    storage.cacheable("a", "1")(loaded(tmp_path, WRITTEN).rows)(3)
    same = WRITTEN.replace("    return", '    """Rows."""  # all of them\n    return')
    assert list(storage.cacheable("a", "1", stale="error")(loaded(tmp_path, same).rows)(3)) == [0, 1, 2]
    changed = loaded(tmp_path, WRITTEN.replace("range(count)", "range(1, count)")).rows
    made = storage.cacheable("a", "1")(changed)
    text = "rows is written otherwise than when it made 'a' '1'. It is read"
    with pytest.warns(UserWarning, match=text) as warned:
        assert list(made(3)) == [0, 1, 2]
    assert warned[0].filename == __file__
    assert list(made(3)) == [0, 1, 2]  # warned once
    assert list(storage.cacheable("a", "1", stale="ignore")(changed)(3)) == [0, 1, 2]
    text = r"rows is written otherwise .*another version.*storage.remove\('a', '1'\)"
    with pytest.raises(ExistsError, match=text) as caught:
        storage.cacheable("a", "1", stale="error")(changed)(3)
    assert "read as it is" not in str(caught.value)
    storage.remove("a", "1")
    assert list(storage.cacheable("a", "1", stale="error")(changed)(3)) == [1, 2]
    text = "stale must be 'warn', 'error', 'ignore' or 'rebuild', found 'fail'"
    with pytest.raises(ValueError, match=text):
        storage.cacheable("a", "1", stale="fail")  # type: ignore[arg-type]


def test_without_a_source_there_is_no_warning_about_code(storage: yoga.Storage, tmp_path: Path) -> None:
    typed: dict[str, Any] = {}
    exec("def rows(count): return list(range(count))", typed)
    storage.cacheable("a", "1")(typed["rows"])(3)
    storage.cacheable("b", "1")(loaded(tmp_path, WRITTEN).rows)(3)
    for id in "ab":
        for function in (typed["rows"], eval("lambda count: [count]"), loaded(tmp_path, WRITTEN).rows):
            assert list(storage.cacheable(id, "1", stale="error")(function)(3)) == [0, 1, 2]


def test_values_captured_from_an_enclosing_function_count(storage: yoga.Storage, tmp_path: Path) -> None:
    def make(split: str, stale: Any = "warn", ignore: Any = ()) -> Any:
        path = tmp_path / split  # only numbers and texts are compared

        @storage.cacheable("mnist", "1", stale=stale, ignore=ignore)
        def mnist(**options: Any) -> list[str]:
            return [split] * 2 if path else []

        return mnist

    assert list(make("train")()) == ["train"] * 2
    assert list(make("train", "error")()) == ["train"] * 2
    with pytest.raises(ExistsError, match="mnist has another split around it than when it made 'mnist' '1'"):
        make("test", "error")()
    with pytest.warns(UserWarning, match="has another split around it"):
        assert list(make("test")()) == ["train"] * 2
    for options in ({"stale": "ignore"}, {"stale": "error", "ignore": ["split"]}):
        assert list(make("test", **options)()) == ["train"] * 2


def scaled(factor: int) -> Any:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return [factor * row for row in function(*args, **kwargs)]

        return wrapper

    return decorate


def test_numbers_captured_by_decorators_count(storage: yoga.Storage) -> None:
    def rows() -> list[int]:
        return [1, 2]

    def wrapped(n: int) -> Any:
        return functools.lru_cache(types.MethodType(lambda self: [n], storage))

    assert list(storage.cacheable("a", "1")(scaled(2)(rows))()) == [2, 4]
    assert list(storage.cacheable("a", "1", stale="error")(scaled(2)(rows))()) == [2, 4]
    with pytest.raises(ExistsError, match="another factor around it"):
        storage.cacheable("a", "1", stale="error")(scaled(3)(rows))()
    assert list(storage.cacheable("b", "1")(wrapped(2))()) == [2]
    with pytest.raises(ExistsError, match="another n around it"):
        storage.cacheable("b", "1", stale="error")(wrapped(3))()


def test_a_decorator_may_give_arguments(storage: yoga.Storage) -> None:
    def with_rng(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(random.Random(0), *args, **kwargs)

        return wrapper

    @storage.cacheable("a", "1")
    @with_rng
    def rows(rng: random.Random, n: int) -> list[int]:
        return [n] * 2 if rng.random() else []

    assert list(rows(5)) == [5, 5]
    assert list(rows(5)) == [5, 5]
    with pytest.raises(ExistsError, match="made with another"):
        rows(6)


def test_a_renamed_argument_is_not_taken_for_its_default(storage: yoga.Storage) -> None:
    def first(n: int = 10) -> list[int]:
        return [n]

    def second(count: int = 10) -> list[int]:
        return [count]

    assert list(storage.cacheable("a", "1", stale="ignore")(first)(5)) == [5]
    for arguments in ((), (5,)):
        with pytest.raises(ExistsError, match=r"second took n then, and does not now; choose"):
            storage.cacheable("a", "1", stale="ignore")(second)(*arguments)


@pytest.mark.rest
def test_functions_of_two_scripts_are_two(tmp_path: Path) -> None:
    script = """
import sys, torchyoga as yoga
def augment():
    return {text!r}
@yoga.Storage(sys.argv[2]).cacheable("a", "1")
def rows(how):
    return [how()]
print(rows(augment)[0])
"""
    for name in ("flip", "blur"):
        (tmp_path / f"{name}.py").write_text(script.format(text=name))
    run = partial(run_program, "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')")
    finished = [
        run(str(tmp_path / f"{name}.py"), str(tmp_path / "storage")) for name in ("flip", "flip", "blur")
    ]
    assert [one.stdout.strip() for one in finished] == ["flip", "flip", ""]
    assert "made with another how" in finished[2].stderr


def test_a_timeout_that_is_set_later_counts(storage: yoga.Storage) -> None:
    begun, release = threading.Event(), threading.Event()

    @storage.cacheable("a", "1")
    def rows() -> Iterator[int]:
        begun.set()
        assert release.wait(PATIENCE)
        yield 1

    builder = threading.Thread(target=rows)
    builder.start()
    assert begun.wait(PATIENCE)
    late = threading.Timer(10.0, release.set)  # ends the wait of a call that does not use the new timeout
    late.start()
    try:
        storage.timeout = 0
        with pytest.raises(BusyError, match="'a' '1' is still being built by"):
            rows()
    finally:
        late.cancel()
        release.set()
        builder.join(PATIENCE)
    assert list(rows()) == [1]
