"""An executor, or a function that makes one -> one that is made anew whenever its workers have died."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import Any

from ...errors import YogaError

__all__ = ["Broken", "Pools"]

Broken = BrokenExecutor


class Pools:
    """Whatever runs parts.

    Args:
        given: an executor, which its owner shuts down; or a function without arguments that makes one, which
            is shut down here.

    Raises:
        TypeError: it is neither.
    """

    def __init__(self, given: object) -> None:
        self._make: Callable[[], Any] | None = None
        self._is_ours = False
        if hasattr(given, "submit") and not isinstance(given, type):
            self._pool: Any = given
        elif callable(given):
            self._make = given
            self._pool = self._made()
        else:
            raise TypeError(
                f"executor must have a method submit, as those of concurrent.futures have, or be a function "
                f"that makes one; found a {type(given).__name__}"
            )

    def _made(self) -> Any:
        assert self._make is not None
        pool = self._make()
        if not hasattr(pool, "submit"):
            raise TypeError(f"executor must return an executor, found a {type(pool).__name__}")
        self._is_ours = True
        return pool

    @property
    def workers(self) -> int | None:
        """How many workers there are; None if the executor does not say."""
        found = getattr(self._pool, "_max_workers", None)
        return found if isinstance(found, int) and found > 0 else None

    @property
    def can_renew(self) -> bool:
        """True if it can be made anew."""
        kind = type(self._pool)
        return self._make is not None or kind is ProcessPoolExecutor or kind.__module__.startswith("loky.")

    def submit(self, function: Callable[..., Any], *args: object) -> Future[Any]:
        """Hands work over.

        Raises:
            BrokenExecutor: the workers have died.
        """
        try:
            return self._pool.submit(function, *args)  # type: ignore[no-any-return]
        except BrokenExecutor:
            raise
        except RuntimeError as error:
            if "shutdown" in str(error) or "shut down" in str(error):
                raise BrokenExecutor(str(error)) from error
            raise

    def renew(self, why: str) -> None:
        """Makes the executor anew.

        Raises:
            YogaError: it is one that cannot be.
        """
        old = self._pool
        new = self._again(old)
        if new is None:
            raise YogaError(
                f"workers of the {type(old).__name__} have died ({why}); parts that are done stay. Call "
                "again, or pass a function that makes the executor, so that it can be made anew"
            )
        self._close(old)
        self._pool = new

    def _again(self, old: Any) -> Any:
        if self._make is not None:
            self._close(old)
            return self._made()
        if type(old) is ProcessPoolExecutor:
            self._is_ours = True
            names = ("_max_workers", "_mp_context", "_initializer", "_initargs")  # nothing public tells them
            return ProcessPoolExecutor(*(getattr(old, name) for name in names))
        if type(old).__module__.startswith("loky."):
            return sys.modules["loky"].get_reusable_executor(max_workers=self.workers)
        return None

    def _close(self, pool: Executor) -> None:
        try:
            pool.shutdown(wait=False, cancel_futures=True)
        except TypeError:  # loky's and others' take no such argument
            pool.shutdown(wait=False)

    def close(self) -> None:
        """Ends the workers, if they were begun here."""
        if self._is_ours:
            self._close(self._pool)
