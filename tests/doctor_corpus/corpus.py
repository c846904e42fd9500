"""What the set-ups of the doctor's tests are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True)
class Setup:
    """A loader, and what the doctor must and must not say of it; several texts have "; " between them.

    Attributes:
        about: what it is.
        make: the loader.
        says: findings that must be named, with their severity if that matters; none of a healthy one.
        names: what must be in the text of a finding.
        never: findings that must not be named. No healthy one is ever called `wrong`.
        job: as if so many processes trained.
        called: the variable that holds the loader.
        thread: the public thread that the complaint is from.
    """

    about: str
    make: Callable[[], Any]
    says: str = ""
    names: str = ""
    never: str = ""
    job: int = 1
    called: str = "loader"
    thread: str = ""


class TwoHundred(Dataset[Any]):
    """Rows, two hundred of them."""

    def __len__(self) -> int:
        return 200


class Rows(TwoHundred):
    """Two hundred rows that a function makes of their numbers."""

    def __init__(self, row: Callable[[int], Any]) -> None:
        self.row = row

    def __getitem__(self, number: int) -> Any:
        return self.row(number)


def shuffled(rows: Any, **options: Any) -> Any:
    """Torch's loader: shuffled batches of 8 by two workers, unless the options say otherwise."""
    return DataLoader(rows, **{"batch_size": 8, "shuffle": True, "num_workers": 2, **options})
