"""An executor; or a function that makes one, which is called again when the workers have died."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

from ..errors import YogaError


class Pools:
    """Whatever runs parts.

    Args:
        given: an executor, which its owner shuts down; or a function without arguments that makes one, when
            it is needed, which is shut down here.

    Raises:
        TypeError: it is neither.
    """

    def __init__(self, given: object) -> None:
        is_pool = hasattr(given, "submit") and not isinstance(given, type)
        if not is_pool and not callable(given):
            raise TypeError(
                f"executor must have a method submit, as those of concurrent.futures have, or be a function "
                f"that makes one; found a {type(given).__name__}"
            )
        self._make: Any = None if is_pool else given
        self._made: Any = given if is_pool else None

    @property
    def _pool(self) -> Any:
        if self._made is None:
            pool = self._make()
            if not hasattr(pool, "submit"):
                raise TypeError(f"executor must return an executor, found a {type(pool).__name__}")
            self._made = pool
        return self._made

    @property
    def workers(self) -> int | None:
        """How many workers there are; None if the executor does not say."""
        count = getattr(self._pool, "_max_workers", None)
        return count if isinstance(count, int) and count > 0 else None

    @property
    def can_renew(self) -> bool:
        """True if another one can be made."""
        return self._make is not None

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
        """Makes another executor.

        Raises:
            YogaError: there is no function that makes one.
        """
        old = self._pool
        if self._make is None:
            raise YogaError(
                f"workers of the {type(old).__name__} have died ({why}); parts that are done stay. Call "
                "again, or pass a function that makes the executor, so that another one can be made"
            )
        self._made = None
        _close(old)

    def close(self) -> None:
        """Ends the workers, if they were begun here."""
        if self._make is not None and self._made is not None:
            _close(self._made)


def _close(pool: Executor) -> None:
    try:
        pool.shutdown(wait=False, cancel_futures=True)
    except TypeError:  # loky's and others' take no such argument
        pool.shutdown(wait=False)
