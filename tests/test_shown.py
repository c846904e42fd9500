"""Tab completion and `repr` show what users need."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from own import Squares

import torchyoga as yoga

OF_A_REF = set(
    re.findall(
        r"\w+",
        """
    class_to_idx classes file_starts fingerprint info is_thread_safe schema take
    columns lengths map map_batches order_by repeat select split where zip
    balanced bucketed decoded filled in_epoch masked packed stats stream
    to_arrow to_huggingface to_pandas to_parquet to_polars token_batches token_windows weighted windows
    """,
    )
)
OF_STATES = {"load_state_dict", "receipt", "set_epoch", "state_after", "state_dict"}


def shown(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def run(code: str, *arguments: str) -> list[str]:
    """The words that a fresh process prints."""
    command = [sys.executable, "-c", code, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split()


def test_the_package_shows_its_public_names_and_loads_what_is_asked_for() -> None:
    names = "torch numpy tensorflow keras tensorpack jax ml_dtypes h5py fsspec pyarrow s3fs sklearn"
    code = "import sys, torchyoga; print([n for n in dir(torchyoga) if n[0] != '_'] == sorted("
    code += "torchyoga.__all__), '__version__' in dir(torchyoga), "
    code += f"{{*'{names} matplotlib torchdata pandas polars datasets'.split()}} & {{*sys.modules}})"
    code += "\nimport torchyoga.adapters\nprint('adapters' in dir(torchyoga))"
    assert run(code) == ["True", "True", "set()", "True"]


def test_each_public_name_is_where_the_package_says() -> None:
    assert yoga._PLACES.keys() == set(yoga.__all__) - {"codecs", "errors"}
    assert yoga.__all__ == sorted(yoga.__all__)
    for name in yoga.__all__:
        assert getattr(yoga, name) is not None
        assert name in vars(yoga)
    with pytest.raises(AttributeError, match="no attribute 'DataLoder'"):
        yoga.DataLoder  # noqa: B018


def test_a_name_that_needs_a_package_names_it() -> None:
    code = "import sys, torchyoga\nsys.modules['pyarrow'] = None\ntry: torchyoga.from_arrow\n"
    code += "except ImportError as error: print(error)"
    assert "torchyoga[arrow]" in " ".join(run(code))


def test_refs_show_what_is_for_users(tmp_path: Path) -> None:
    ref = yoga.Storage(tmp_path).submit([1, 2, 3], "numbers", "1", progress=False)
    assert shown(Squares()) == OF_A_REF
    assert shown(Squares()[2:]) == OF_A_REF | {"over", "rows", "rows_at", "view_name", "whole"}
    assert shown(ref) == OF_A_REF | {"download", "location", "manifest", "open"}
    assert repr(Squares()) == "<Squares: 10 rows>"
    assert repr(Squares()[2:]) == "<Squares[2:10]: 8 rows>"
    assert repr(Squares()[::-3]) == "<Squares[9::-3]: 4 rows>"
    assert repr(ref).startswith("<DataRef 'numbers' '1': 3 rows, ")


def test_loaders_streams_samplers_and_storages_show_what_is_for_users(tmp_path: Path) -> None:
    ref = Squares()
    assert shown(ref.stream()) == OF_STATES | {"batches", "cursor", "epoch", "source"}
    assert shown(yoga.DataLoader(ref)) - shown(torch.utils.data.DataLoader([1])) == OF_STATES | {  # type: ignore[arg-type]
        *("end_of_dataloader", "epoch", "meter", "peek", "position_of", "prove", "remainder", "rows_in_step"),
        *("seed_rows", "steps", "total_batch_size", "total_dataset_length", "use_stateful_dataloader"),
    }
    assert shown(yoga.ResumableSampler(ref)) == OF_STATES | {
        *("data_source", "dataset", "draws_from", "drop_last", "epoch", "indices", "locality"),
        *("num_replicas", "num_samples", "position_of", "prove", "rank", "remainder", "rows_at", "seed"),
        *("shuffle", "total_size"),
    }
    assert shown(yoga.Storage(tmp_path)) == {
        *("add_columns", "append", "cacheable", "check", "clean", "compression", "convert", "copy"),
        *("delete_rows", "drop_columns", "fetch", "file_bytes", "format", "list", "log", "path"),
        *("remove", "submit", "tag", "tags", "timeout", "url", "versions"),
    }
