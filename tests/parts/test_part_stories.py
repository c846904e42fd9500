"""Random stories of plans, parts, deaths, publications, removals and cleaning, against plain lists."""

from __future__ import annotations

import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from parted import Planned
from stored import store_of

from torchyoga import Storage
from torchyoga.building.board import Board
from torchyoga.errors import ExistsError

pytestmark = pytest.mark.usefixtures("unsynced")
ROWS = st.lists(st.integers(0, 99), min_size=1, max_size=7)


class Stories(RuleBasedStateMachine):
    """One id, its versions as lists of numbers, and plans that are under way."""

    kind = "directory"

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        path = Path(self.folder.name)
        if self.kind == "directory":
            self.storage = Storage(path / "storage", timeout=20)
        else:
            self.storage = Storage(f"memory://{secrets.token_hex(4)}", cache_dir=path / "cache", timeout=20)
        self.versions: dict[str, list[int]] = {}
        self.plans: dict[str, tuple[list[int], Planned, set[int]]] = {}
        self.number = 0
        for rows in ([1, 2, 3], [4]):
            version = self.new()
            self.storage.submit(rows, "a", version)
            self.versions[version] = rows

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def new(self) -> str:
        self.number += 1
        return f"v{self.number}"

    def drawn(self, data: st.DataObject, of: dict[str, object]) -> str:
        return data.draw(st.sampled_from(sorted(of)))

    # -- builds by many

    @rule(rows=ROWS, parts=st.integers(1, 3))
    def plan(self, rows: list[int], parts: int) -> None:
        version = self.new()
        self.plans[version] = rows, Planned(self.storage, rows, "a", version, parts=parts), set()

    @precondition(lambda self: self.plans)
    @rule(data=st.data())
    def plan_again(self, data: st.DataObject) -> None:
        """As a second driver does: it takes the plan that is there."""
        version = self.drawn(data, self.plans)
        rows, plan, built = self.plans[version]
        again = Planned(self.storage, rows, "a", version)
        assert again.missing == plan.missing
        self.plans[version] = rows, again, built

    @precondition(lambda self: self.plans)
    @rule(data=st.data())
    def build(self, data: st.DataObject) -> None:
        _, plan, built = self.plans[self.drawn(data, self.plans)]
        part = data.draw(st.sampled_from(plan.parts))
        assert part not in built or plan.build(part) == 0.0
        plan.build(part)
        built.add(part)
        assert {*plan.missing} == {*plan.parts} - built

    @precondition(lambda self: self.plans)
    @rule(data=st.data(), claims=st.booleans())
    def die(self, data: st.DataObject, claims: bool) -> None:
        """Before the note, with the files in place; or with no more than a claim."""
        version = self.drawn(data, self.plans)
        _, plan, _ = self.plans[version]
        part = data.draw(st.sampled_from(plan.parts))
        board = Board(store_of(self.storage), "a", version, 60.0)
        if claims:
            found = board.plan()
            assert found is not None
            board.begin(found, part, secrets.token_hex(8), is_taken=True)
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Board, "note", _killed)
            with suppress(KeyboardInterrupt):
                plan.build(part)

    @precondition(lambda self: self.plans)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        version = self.drawn(data, self.plans)
        rows, plan, built = self.plans[version]
        if len(built) < len(plan.parts):
            assert plan.publish() is None
            return
        assert len(plan.publish()) == len(rows)
        self.versions[version] = rows
        del self.plans[version]

    # -- versions

    @rule(data=st.data())
    @precondition(lambda self: self.versions)
    def remove(self, data: st.DataObject) -> None:
        version = self.drawn(data, self.versions)
        self.storage.remove("a", version, force=True)
        del self.versions[version]

    @rule(grace=st.sampled_from([3600, 3600, 3600, 0]))
    @precondition(lambda self: self.number > 3)
    def clean(self, grace: int) -> None:
        """With no grace also plans at which somebody may be: who comes back hears that they are gone."""
        self.storage.clean(grace)
        if not grace:
            for _, plan, _ in self.plans.values():
                with suppress(ExistsError):
                    assert plan.publish() is None
            self.plans.clear()

    # -- what must hold

    @invariant()
    def all_can_be_read(self) -> None:
        if not hasattr(self, "versions"):
            return
        in_order = sorted(self.versions, key=lambda version: int(version.removeprefix("v")))
        assert self.storage.list() == [("a", version) for version in in_order]
        for version, rows in self.versions.items():
            assert list(self.storage.fetch("a", version)) == rows


def _killed(*_: object) -> None:
    raise KeyboardInterrupt  # which, unlike an error, leaves everything as it is


class InMemory(Stories):
    kind = "memory"


TestStories = Stories.TestCase
TestStories.settings = settings(max_examples=8, stateful_step_count=25)
TestInMemory = pytest.mark.rest(InMemory.TestCase)
TestInMemory.settings = settings(max_examples=8, stateful_step_count=25)


@pytest.mark.soak
@pytest.mark.parametrize("stories", [Stories, InMemory])
def test_many_stories(stories: type[Stories]) -> None:
    run_state_machine_as_test(
        stories, settings=settings(max_examples=500, stateful_step_count=40, derandomize=False)
    )
