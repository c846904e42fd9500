"""Results of the tests -> the table in docs/trainers.md.

`make test-trainers` runs the tests and then this, which fails if the table says anything else; with --write
it writes the table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "trainers.md"
RESULTS = Path(__file__).parent / "results.json"
COLUMNS = ("drop-in", "resume", "workers", "in_order=False", "ranks", "evaluation")
ROWS = {  # trainer: its name, and the package whose version is shown
    "plain": ("torch, a plain loop; DDP", "torch"),
    "dcp": ("torch.distributed.checkpoint", "torch"),
    "stateful": ("torchdata StatefulDataLoader", "torchdata"),
    "nodes": ("torchdata.nodes", "torchdata"),
    "lightning_trainer": ("Lightning Trainer", "lightning"),
    "fabric": ("Lightning Fabric", "lightning"),
    "accelerate_loop": ("Accelerate", "accelerate"),
    "transformers_trainer": ("transformers.Trainer", "transformers"),
    "keras_fit": ("Keras on torch", "keras"),
}
_BEGIN, _END = "<!-- the matrix, written by tests/trainers/matrix.py -->\n", "<!-- end of the matrix -->\n"


def keep(found: Mapping[tuple[str, str], Sequence[tuple[str, str]]]) -> None:
    """Writes the results of the tests of each cell to a file."""
    cells = {
        trainer: {column: _cell(found[trainer, column]) for column in COLUMNS if (trainer, column) in found}
        for trainer in ROWS
    }
    RESULTS.write_text(json.dumps(cells, indent=1))


def _cell(tests: Sequence[tuple[str, str]]) -> str:
    if any(outcome == "failed" for outcome, _ in tests):
        return "FAILS"
    if any(outcome == "skipped" for outcome, _ in tests):
        return "not tested"
    return "; ".join(dict.fromkeys(says for _, says in tests))


def table() -> str:
    """The table, in Markdown."""
    cells = json.loads(RESULTS.read_text())
    lines = [("", "version", *COLUMNS), ("---",) * (len(COLUMNS) + 2)]
    for trainer, (name, package) in ROWS.items():
        said = [cells[trainer].get(column, "-") for column in COLUMNS]
        lines.append((name, version(package).split("+")[0], *said))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    text = PAGE.read_text()
    before, rest = text.split(_BEGIN)
    old, after = rest.split(_END)
    if "--write" in sys.argv:
        PAGE.write_text(f"{before}{_BEGIN}\n{table()}\n{_END}{after}")
    elif old.strip() != table().strip():
        sys.exit(
            f"docs/trainers.md says\n{old}\nbut the tests found\n{table()}\nIf that is right, run "
            "python tests/trainers/matrix.py --write"
        )


if __name__ == "__main__":
    main()
