"""Context managers written as generators, which pass any exception on as it is.

Those of contextlib assign `__traceback__`, which an exception of a frozen dataclass refuses: in its place a
FrozenInstanceError would come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def contextmanager(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """A generator function that yields once, as a function that returns a context manager.

    Example:
        >>> @contextmanager
        ... def doubled(number):
        ...     yield 2 * number
        >>> with doubled(3) as found:
        ...     print(found)
        6
    """

    @wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Context(function(*args, **kwargs))

    return made


class _Context(AbstractContextManager[T], Generic[T]):
    def __init__(self, steps: Iterator[T]) -> None:
        self._steps = steps

    def __enter__(self) -> T:
        return next(self._steps)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            if error is None:
                next(self._steps)
            else:
                self._steps.throw(error)  # type: ignore[attr-defined]  # it is a generator
        except StopIteration as end:
            return end is not error
        except BaseException as raised:
            # Python makes a RuntimeError of a StopIteration that leaves a generator.
            is_same = raised is error or (isinstance(error, StopIteration) and raised.__cause__ is error)
            if error is None or not is_same:
                raise
            BaseException.with_traceback(error, trace)  # without the lines of the generator
            return False
        raise RuntimeError("the function of a context manager has yielded twice")
