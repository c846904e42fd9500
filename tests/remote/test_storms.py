"""A store on loopback, machines that use it at once, and faults at any of their steps."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from explained import Deed, are_explained
from machines import running
from servers import S3

from torchyoga.formats.contract import FORMATS

ROUNDS, ROUNDS_IN_ALL = 4, 300

# A process of its own, which has no threads of a store's client and can therefore fork.
STORM = """
import contextlib, sys
from pathlib import Path
tests, folder, format, seed, rounds, url, endpoint = sys.argv[1:]
sys.path[:0] = [tests, tests + "/remote"]
from servers import S3, faulty
from storms import MACHINES, Storm

with contextlib.ExitStack() as stack:
    proxies = [stack.enter_context(faulty(endpoint)) for _ in range(MACHINES)]
    storm = Storm(Path(folder), S3(endpoint), proxies, url, format, int(seed))
    stack.callback(storm.end)
    for number in range(int(rounds)):
        storm.rage(number)
        if number % 25 == 24:
            storm.calm()
        for proxy in proxies:
            proxy.clear()
        print("round", number, flush=True)
    storm.calm()
"""


def rage(s3: S3, bucket: str, folder: Path, format: str, seed: int, rounds: int) -> None:
    print("seed", seed)
    (folder / "storm").mkdir()
    given = [str(Path(__file__).parents[1]), str(folder / "storm"), format, str(seed), str(rounds)]
    with running(STORM, folder / "machine", *given, f"s3://{bucket}/storm", s3.endpoint) as storm:
        storm.check(timeout=120 + 10 * rounds)


def test_machines_at_once_with_faults_at_any_step(s3: S3, bucket: str, tmp_path: Path) -> None:
    rage(s3, bucket, tmp_path, "lmdb", 0, ROUNDS)


@pytest.mark.soak
@pytest.mark.parametrize("format", FORMATS)
def test_many_rounds_of_machines_at_once_with_faults_at_any_step(
    format: str, s3: S3, bucket: str, tmp_path: Path
) -> None:
    rage(s3, bucket, tmp_path, format, random.randrange(2**32), ROUNDS_IN_ALL // len(FORMATS))


def put(begin: float, end: float, value: int) -> Deed:
    return Deed(begin, end, lambda _: [value])


def seen(begin: float, end: float, value: int) -> Deed:
    return Deed(begin, end, lambda state: [state] if state == value else [])


@pytest.mark.parametrize(
    ("deeds", "after", "is_explained"),
    [
        ([], 0, True),
        ([], 1, False),
        ([put(0, 1, 1), put(2, 3, 2)], 2, True),
        ([put(0, 1, 1), put(2, 3, 2)], 1, False),
        ([put(0, 2, 1), put(1, 3, 2)], 1, True),
        ([put(0, 2, 1), put(1, 3, 2), seen(4, 5, 2)], 1, False),
        ([put(0, math.inf, 1), put(2, 3, 2)], 1, True),
        ([put(0, 1, 1), seen(2, 3, 0)], 1, False),
        ([put(0, 9, 1), seen(2, 3, 0)], 1, True),
        ([put(0, 9, 1), seen(2, 3, 1), seen(4, 5, 0)], 1, False),
    ],
)
def test_which_answers_and_states_can_be_explained(deeds: list[Deed], after: int, is_explained: bool) -> None:
    assert are_explained(deeds, 0, after) is is_explained
