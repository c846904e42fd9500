"""Ray -> an executor."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

__all__ = ["ray_executor"]


def ray_executor(**options: object) -> Executor:
    """Ray's workers as an executor, for `submit(..., executor=yoga.ray_executor())`.

    Ray is initialised if it is not yet; it tries tasks again by itself when a worker dies.

    Args:
        options: as for `ray.remote`: `num_cpus`, `memory`, `resources`, `max_retries`, `runtime_env`.

    Raises:
        ImportError: Ray is not installed.

    Example:
        >>> with yoga.ray_executor(num_cpus=1) as executor:  # doctest: +SKIP
        ...     ref = storage.submit(dataset, "images", "1.0", executor=executor)
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError("ray_executor needs Ray: pip install ray") from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    return _RayExecutor(ray, options)


class _RayExecutor(Executor):
    def __init__(self, ray: Any, options: dict[str, object]) -> None:
        def call(function: Callable[..., Any], *args: object) -> Any:
            return function(*args)

        self._put = ray.put
        self._call = ray.remote(**options)(call) if options else ray.remote(call)
        self._sent: dict[int, tuple[object, Any]] = {}  # what has been put into Ray's store once, by identity

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Runs a function in a worker; large arguments are sent once."""
        sent = [self._once(value) if isinstance(value, bytes) else value for value in args]
        return self._call.remote(function, *sent).future()  # type: ignore[no-any-return]

    def _once(self, value: bytes) -> Any:
        found = self._sent.get(id(value))
        if found is None or found[0] is not value:
            self._sent = {id(value): (value, self._put(value))}
        return self._sent[id(value)][1]
