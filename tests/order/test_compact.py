"""Numbers, sources and passes as states tell them: there and back, and damaged ones refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyoga.errors import StateError
from torchyoga.order.compact import MARK, compact, expanded, lists_compact, lists_expanded
from torchyoga.order.mixing.sources import Source, read_sources, same_rows, tag_of, written_sources
from torchyoga.order.mixing.turns import Era, read_era

NUMBERS = st.lists(st.integers(0, 2**40) | st.integers(0, 3), min_size=1, max_size=80)


@given(NUMBERS)
def test_numbers_there_and_back(numbers: list[int]) -> None:
    text = compact(numbers)
    assert expanded(text, len(numbers)) == numbers
    assert not set(text) & set(';.:/"\\')


@given(st.lists(NUMBERS, min_size=1, max_size=2), st.sampled_from(["", MARK]))
def test_lists_there_and_back(lists: list[list[int]], mark: str) -> None:
    text = "/".join(",".join(map(str, numbers)) for numbers in lists) + mark
    assert lists_expanded(lists_compact(text)) == text
    assert lists_expanded(text) == text


def test_numbers_of_one_size_take_two_bits_more_than_they_need() -> None:
    numbers = [2**20 + n for n in range(500)]
    assert len(compact(numbers)) <= 2 + 500 * 22 / 8 * 1.25 + 5


@given(st.text(max_size=30), st.integers(0, 9))
def test_damaged_numbers_are_refused(text: str, count: int) -> None:
    for read in (lambda: expanded(text, count), lambda: lists_expanded("~" + text)):
        try:
            read()
        except ValueError:
            continue


def test_far_too_many_numbers_are_refused() -> None:
    for text in ("~99999999.00", "~3.00", "~3.99~~~~~~", "~1.00.62", "~2.00.00.00"):
        with pytest.raises(ValueError, match=r"damaged|base85|bad|Invalid"):
            lists_expanded(text)


@given(st.data())
def test_sources_there_and_back(data: Any) -> None:
    number = data.draw(st.integers(1, 60))
    versions = {}
    sources = []
    for n in range(number):
        name = f"{data.draw(st.text(max_size=3))} {n}"
        sizes = sorted(data.draw(st.sets(st.integers(1, 10**6), min_size=1, max_size=4)), reverse=True)
        versions[name] = [(size, tag_of(f"{name} {size}")) for size in sizes]
        eras = data.draw(st.sampled_from([(), (Era(0, 0, 3), Era(3, 1, 9))]))
        sources.append(Source(name, *data.draw(st.sampled_from(versions[name])), eras))
    text = written_sources(tuple(sources))
    new = {"a new one": [(3, tag_of("3"))]}
    assert read_sources(text, {**versions, **new}, "here") == sources
    assert same_rows(text, written_sources(tuple(Source(*source[:3]) for source in sources)))
    other = Source(sources[0].name, 2**40, sources[0].tag, sources[0].eras)
    assert not same_rows(text, written_sources((other, *sources[1:])))
    with pytest.raises(StateError, match=r"has (other|1099511627776) rows of the source"):
        read_sources(written_sources((other, *sources[1:])), versions, "here")
    del versions[sources[-1].name]
    with pytest.raises(StateError, match=r"which (is|are) not"):
        read_sources(text, versions, "here")


def test_parts_of_one_dataset_have_one_version() -> None:
    names = [f"class {n}" for n in range(300)]
    versions = {name: [(n + 5, "new"), (n, "old")] for n, name in enumerate(names)}
    then = [Source(name, n, "old") for n, name in enumerate(names) if n]  # the first class had none
    text = written_sources(tuple(then), together=True)
    assert len(text) < 60
    assert read_sources(text, versions, "here") == then
    with pytest.raises(StateError, match="has other rows, of 299 classes"):
        read_sources(text, {name: some[:1] for name, some in versions.items()}, "here")


@pytest.mark.parametrize(
    "text",
    ["", "a", "a=1", "a=-", "a=x-1", "a=1-2,a=1-2", "a=1-2@", "a=1-2@1.2", "a=1-2@0.0.5.9.9", "#", "#a#b"],
)
def test_damaged_sources_are_refused(text: str) -> None:
    with pytest.raises(StateError, match="sources are damaged"):
        read_sources(text, {"a": [(1, "2")]}, "here")


@pytest.mark.parametrize(
    "text", ["0.0.0", "0.0.5.5.1", "0.0.5.3.3", "0.0.5.3.0", "0.0.9.3.2.3.1", "1.2.³", "-1.0.3"]
)
def test_damaged_passes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="damaged passes"):
        read_era(text)
