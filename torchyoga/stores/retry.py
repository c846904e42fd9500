"""A request to a store, tried a few times, with growing pauses between; and what its errors mean.

Retries are in one place.
s3fs, botocore and aiohttp each retry what the layer below has already retried, 50 times in all; their retries
are switched off.

Pauses depend on a number that is drawn by the caller.
So they are arithmetic, and benchmarks/scale.py simulates ten thousand ranks with these very functions. Where
a store answers that it is busy, any moment up to the longest pause is as likely ("full jitter"; M. Brooker,
"Exponential backoff and jitter", AWS, 2015), so that requests come evenly. Where it does not answer, a pause
is at least half as long as it may be, because an outage takes a while.
"""

from __future__ import annotations

import errno
import os
import random
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from typing import TypeVar

from ..errors import CorruptError, RemoteError
from ..process.messages import log

T = TypeVar("T")
_TRIES = 6
_FIRST_TRIES = 4  # where nothing listens, and never has: a wrong address, or no network
_BUSY_TRIES = 20  # for a server that answers that it is busy
_BUSY = {"429", "500", "502", "503", "504", "SlowDown", "InternalError", "ServiceUnavailable", "Throttling"}
_LONGEST_SILENCE = 120.0  # seconds after which no further try is begun
_FIRST_SILENCE = 15.0  # the same, where nothing has ever answered
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 8.0  # seconds between two tries
_FIRST_REQUESTS = 5000  # a second: S3 takes 5,500 below a prefix
_LONGEST_SPREAD = 10.0  # seconds
_MOST_RANKS = 2**20
# Errors that trying again will not change.
_FINAL = (
    CorruptError,
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    TypeError,
    ValueError,
    ImportError,
    CancelledError,  # this process is ending
)
_FINAL_NAMES = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "ParamValidationError"}
_UNREACHED = {errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH}
_FINAL_ERRNOS = {errno.ENOSPC, errno.EROFS, errno.ENAMETOOLONG, errno.EDQUOT}
_ASKED: set[str] = set()  # buckets and hosts
ANSWERED: set[str] = set()  # buckets and hosts: if they restart, they are waited for


def tried(what: str, place: str, call: Callable[[], T]) -> T:
    """The result of a request.

    Args:
        what: names the request, for messages, as in "read s3://bucket/name".
        place: the bucket or the host.
        call: makes the request.

    Raises:
        CorruptError, FileNotFoundError, FileExistsError, ImportError: as `call`.
        RemoteError: the store cannot be reached, or refuses.
    """
    if place not in _ASKED:
        _ASKED.add(place)
        if pause := first_pause(num_starting(), random.random()):
            time.sleep(pause)
    started = time.monotonic()
    for tries in range(1, max(_TRIES, _BUSY_TRIES) + 1):
        try:
            found = call()
        except Exception as error:
            is_unreached = _is_unreached(error)
            if not is_unreached:
                ANSWERED.add(place)
            if _is_final(error):
                is_missing = isinstance(error, FileNotFoundError)
                if is_missing and (what.startswith("write") or names_bucket(error)):
                    raise RemoteError(
                        f"cannot {what}: {_described(error)}. Does the bucket exist?"
                    ) from error
                if isinstance(error, (CorruptError, FileNotFoundError, FileExistsError, ImportError)):
                    raise
                raise RemoteError(f"cannot {what}: {_described(error)}{_hint(error)}") from error
            is_busy = bool(statuses(error) & _BUSY)
            most, longest = _BUSY_TRIES if is_busy else _TRIES, _LONGEST_SILENCE
            if place not in ANSWERED:
                most, longest = min(most, _FIRST_TRIES), _FIRST_SILENCE
            if tries >= most or time.monotonic() - started > longest:
                hint = "Is the store running, and its endpoint right?"
                if is_busy or is_unreached:
                    hint = "It is busy." if is_busy else f"Is there a network? {hint}"
                raise RemoteError(
                    f"cannot {what}: {_described(error)} (tried {tries} times). {hint} Try again; what "
                    "has been done so far is kept"
                ) from error
            pause = pause_after(tries, random.random(), is_busy)
            log.info("%s: %s; trying again in %.1f s", what, _described(error), pause)
            time.sleep(pause)
        else:
            ANSWERED.add(place)
            return found
    raise AssertionError("the last try returns or raises")


def pause_after(tries: int, chance: float, is_busy: bool) -> float:
    """Seconds to wait after so many failed tries.

    Args:
        tries: from 1 on.
        chance: drawn evenly from 0 to 1.
        is_busy: the store has answered that it gets too many requests.

    Example:
        >>> [pause_after(tries, 1.0, True) for tries in range(1, 6)]
        [0.2, 0.6, 1.8, 5.4, 8.0]
        >>> pause_after(5, 0.0, True), pause_after(5, 0.0, False)
        (0.0, 4.0)
    """
    longest: float = min(_LONGEST_WAIT, round(_FIRST_WAIT * 3 ** min(tries - 1, 40), 9))
    return longest * (chance if is_busy else 0.5 + chance / 2)


def first_pause(num_processes: int, chance: float) -> float:
    """Seconds to wait before the first request to a store, if so many processes start at once.

    They come at 5,000 a second, in ten seconds at most: 64 processes in 13 ms, 10,000 in two seconds.

    Example:
        >>> first_pause(1, 0.5), first_pause(10_000, 0.5), first_pause(10**6, 1.0)
        (0.0, 1.0, 10.0)
    """
    if num_processes <= 1:
        return 0.0
    return chance * min(_LONGEST_SPREAD, num_processes / _FIRST_REQUESTS)


def num_starting() -> int:
    """The ranks of this job, as torch.distributed or the launcher says; 1 if neither does."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    for name in ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"):
        text = os.environ.get(name, "")
        if text.isdecimal() and len(text) < 10:
            return min(max(int(text), 1), _MOST_RANKS)
    return 1


def _is_final(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in _FINAL_ERRNOS:
        return True
    if is_beyond(error):  # there will be no more bytes in it
        return True
    names = {cls.__name__ for cls in type(error).__mro__}
    return bool(names & _FINAL_NAMES) or (isinstance(error, _FINAL) and "Timeout" not in type(error).__name__)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it came of."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _is_unreached(error: BaseException) -> bool:
    """True if nothing listens there, or no way leads there, or its name is not known."""
    found = list(causes(error))
    is_unknown = any(isinstance(cause, socket.gaierror) for cause in found)
    return is_unknown or any(getattr(cause, "errno", None) in _UNREACHED for cause in found)


def statuses(error: BaseException) -> set[str]:
    """The server's answers, as far as its client passes them on."""
    found = set()
    for cause in causes(error):
        status = getattr(cause, "status", None)
        found.add(str(getattr(cause, "code", "") if status is None else status))
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping):
            found.add(str(response.get("Error", {}).get("Code")))
    return found


def is_beyond(error: Exception) -> bool:
    """True if no byte was within the requested range."""
    is_reported = (
        isinstance(error, OSError) and error.errno == errno.EINVAL and "range" in str(error.args[-1])
    )
    return is_reported or bool(statuses(error) & {"416", "InvalidRange"})


def names_bucket(error: Exception) -> bool:
    """True if there is no such bucket."""
    return bool(statuses(error) & {"NoSuchBucket", "ContainerNotFound"})


def _described(error: BaseException) -> str:
    # A server may have led to an address that is signed, or that has a password.
    text = f"{type(error).__name__}: {error}"[:10_000]  # a server may send any number of letters
    text = re.sub(r"(?<=://)[^\s/@]+@|\?[^\s'\")>]*=[^\s'\")>]*", "", text)
    return " ".join(text.split())[:300]


def _hint(error: Exception) -> str:
    if "RequestTimeTooSkewed" in statuses(error):
        return ". This machine's clock is more than 15 minutes off that of the store; set it"
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & _FINAL_NAMES:
        return ". Pass storage_options to Storage, or set the environment variables of the store's client"
    if isinstance(error, PermissionError):
        return ". The credentials do not allow it; pass others in storage_options"
    return ""
