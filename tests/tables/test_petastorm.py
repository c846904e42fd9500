"""Data sets as Petastorm writes them: its codecs, and its pickled schema, which can run nothing."""

from __future__ import annotations

import decimal
import io
import pickle
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from coding.decoders import file_of

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, SchemaError
from torchyoga.rows.column import Codec
from torchyoga.testing import assert_rows_equal, check_dataref

KEY = b"dataset-toolkit.unischema.v1"
trusted = partial(yoga.from_petastorm, trust_pickle=True)
N = 10
RNG = np.random.default_rng(0)
MATRIX = RNG.random((N, 2, 3)).astype(np.float32)
PACKED = RNG.integers(0, 9, (N, 4)).astype(np.uint32)
POINTS = [RNG.random((i % 4, 3)) for i in range(N)]
IMAGES = RNG.integers(0, 255, (N, 5, 4, 3)).astype(np.uint8)


def module_of(name: str, *classes: str, of: type = object) -> ModuleType:
    module = ModuleType(name)
    for cls in classes:
        setattr(module, cls, type(cls, (of,), {"__module__": name}))
    return module


@pytest.fixture
def petastorm() -> Iterator[Any]:
    """Classes that pickle under the names of Petastorm's, while the fixture lasts."""
    codecs = module_of(
        "petastorm.codecs",
        "NdarrayCodec",
        "CompressedNdarrayCodec",
        "CompressedImageCodec",
        "ScalarCodec",
        "Other",
    )
    schemas = module_of("petastorm.unischema", "Unischema")
    fields = namedtuple("UnischemaField", "name numpy_dtype shape codec nullable")
    fields.__module__, schemas.UnischemaField = "petastorm.unischema", fields  # type: ignore[attr-defined]
    spark = module_of("pyspark.sql.types", "LongType", "StringType")
    names = {"petastorm": ModuleType("petastorm"), "petastorm.codecs": codecs, "petastorm.unischema": schemas}
    names |= {name: ModuleType(name) for name in ("pyspark", "pyspark.sql")} | {"pyspark.sql.types": spark}
    assert not names.keys() & sys.modules.keys()
    sys.modules.update(names)
    yield codecs, schemas, spark
    for name in names:
        sys.modules.pop(name, None)


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("petastorm", "pyspark")]:
        del sys.modules[name]


def with_state(cls: type, **state: object) -> Any:
    made = object.__new__(cls)
    made.__dict__.update(state)
    return made


def schema_of(petastorm: Any, *more: tuple[Any, ...]) -> bytes:
    codecs, schemas, spark = petastorm
    scalar = with_state(codecs.ScalarCodec, _spark_type=with_state(spark.LongType))
    fields = [
        ("id", np.int64, (), scalar, False),
        ("small", np.uint8, (), scalar, False),
        ("matrix", np.float32, (2, 3), with_state(codecs.NdarrayCodec), False),
        ("packed", np.uint32, (4,), with_state(codecs.CompressedNdarrayCodec), True),
        ("points", np.float64, (None, 3), with_state(codecs.NdarrayCodec), False),
        (
            "image",
            np.uint8,
            (5, 4, 3),
            with_state(codecs.CompressedImageCodec, _image_codec=".png", _quality=80),
            False,
        ),
        ("part", np.str_, (), None, False),
        *more,
    ]
    found = OrderedDict((one[0], schemas.UnischemaField(*one)) for one in fields)
    return pickle.dumps(with_state(schemas.Unischema, _name="Frames", _fields=found, **found), 2)


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def packed(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, arr=array)
    return file.getvalue()


def write(folder: Path, pickled: bytes, **columns: Any) -> Path:
    table = pa.table(
        {
            "id": np.arange(N),
            "small": np.arange(N, dtype=np.int16),
            "matrix": [saved(one) for one in MATRIX],
            "packed": [None if i == 3 else packed(one) for i, one in enumerate(PACKED)],
            "points": [saved(one) for one in POINTS],
            "image": [file_of(one, "png") for one in IMAGES],
            **columns,
        }
    )
    for part in (0, 1):
        (folder / f"part=p_{part}").mkdir(parents=True)
        pq.write_table(
            table[part * 5 : part * 5 + 5], folder / f"part=p_{part}" / "x.parquet", row_group_size=3
        )
    pq.write_metadata(table.schema.with_metadata({KEY: pickled}), folder / "_common_metadata")
    return folder


def test_arrays_scalars_and_images_come_as_the_schema_says(petastorm: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "frames", schema_of(petastorm))
    forget()
    ref = trusted(folder)
    assert not {"petastorm", "pyspark"} & sys.modules.keys()
    for i, row in enumerate(ref):
        assert (row["id"], row["small"], row["part"]) == (i, i, f"p_{i // 5}")
        assert row["small"].dtype == np.uint8
        assert row["matrix"].tolist() == MATRIX[i].tolist()
        assert row["packed"] is None if i == 3 else row["packed"].tolist() == PACKED[i].tolist()
        assert row["points"].shape == POINTS[i].shape
        assert row["points"].tolist() == POINTS[i].tolist()
        assert row["image"] == file_of(IMAGES[i], "png")
    columns = {column.name: column for column in ref.schema.columns}
    assert columns["image"].meaning.codec == Codec("png", (("height", 5), ("width", 4)))
    assert columns["matrix"].shape == (2, 3)
    check_dataref(ref.columns(["matrix", "points", "small"]))
    batch = next(iter(yoga.DataLoader(ref.columns(["id", "matrix"]), 4, shuffle="block", seed=0)))
    assert batch["matrix"].shape == (4, 2, 3)
    made = yoga.Storage(tmp_path / "storage").submit(ref, "frames", "1", progress=False)
    assert made[3]["packed"] is None
    assert made[4]["packed"].tolist() == PACKED[4].tolist()
    some = trusted(folder, ["matrix"], [("id", ">", 7)])
    assert [row["matrix"].tolist() for row in some] == MATRIX[8:].tolist()


IMAGE_KINDS: list[tuple[str, Any, tuple[int | None, ...], tuple[int, ...]]] = [
    ("depth", np.uint16, (5, 4), (5, 4)),
    ("any", np.uint16, (None, None), (5, 4)),
    ("grey", np.uint8, (5, 4), (5, 4)),
    ("wide", np.uint16, (5, 4, 3), (5, 4, 3)),
    ("colors", np.uint8, (None, None, None), (5, 4, 3)),
]


def test_images_are_decoded_with_the_channels_and_bits_of_the_schema(petastorm: Any, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")  # as Petastorm encodes them
    codec = with_state(petastorm[0].CompressedImageCodec, _image_codec=".png", _quality=80)
    fields, columns, arrays = [], {}, {}
    for name, dtype, shape, own in IMAGE_KINDS:
        fields.append((name, dtype, shape, codec, False))
        values = RNG.integers(0, 1500 if dtype is np.uint16 else 255, (N, *own)).astype(dtype)
        values.reshape(N, -1)[:, 0] = 1500 % (np.iinfo(dtype).max + 1)
        arrays[name] = values
        stored = values[..., ::-1] if len(own) == 3 else values
        columns[name] = [cv2.imencode(".png", np.ascontiguousarray(one))[1].tobytes() for one in stored]
    folder = write(tmp_path / "x", schema_of(petastorm, *fields), **columns)
    ref = trusted(folder)
    names = [*arrays]
    for i, row in enumerate(ref.columns(names).decoded()):
        for name in names:
            assert row[name].dtype == arrays[name].dtype
            assert np.array_equal(row[name], arrays[name][i]), name
    assert ref.columns(["depth"]).decoded()[0]["depth"][0, 0] == 1500
    sized = ref.columns(["depth"]).decoded({"depth": yoga.codecs.image((5, 4), layout="chw")})
    batch = next(iter(yoga.DataLoader(sized, N)))["depth"].numpy()
    assert np.array_equal(batch[:, 0], arrays["depth"])
    made = yoga.Storage(tmp_path / "storage").submit(ref.columns(["depth"]), "x", "1", progress=False)
    assert np.array_equal(made.decoded()[4]["depth"], arrays["depth"][4])
    shapes = {column.name: column.shape for column in ref.columns(names).decoded().schema.columns}
    assert shapes == {name: own if None not in shape else None for name, _, shape, own in IMAGE_KINDS}


def test_images_have_the_size_of_the_schema(petastorm: Any, tmp_path: Path) -> None:
    ref = trusted(write(tmp_path / "x", schema_of(petastorm)), ["image"])
    expected = yoga.from_arrays({"image": np.stack(IMAGES)}).windows(3)
    for found in (ref.decoded().windows(3), ref.windows(3).decoded()):
        assert found.schema.columns[0].shape == (3, 5, 4, 3)
        assert_rows_equal(list(found), list(expected))
    chw = ref.decoded({"image": yoga.codecs.image(layout="chw", mode="gray")})
    assert chw.schema.columns[0].shape == chw[0]["image"].shape == (1, 5, 4)
    other = [file_of(one, "png") for one in [*IMAGES[:7], IMAGES[7][:3], *IMAGES[8:]]]
    odd = trusted(write(tmp_path / "y", schema_of(petastorm), image=other), ["image"])
    text = r"row 7, column 'image': its shape is \(3, 4, 3\).*says \(5, 4, 3\)"
    with pytest.raises(CorruptError, match=text):
        odd.decoded()[7]
    assert odd.decoded({"image": yoga.codecs.image(size=6)})[7]["image"].shape == (6, 6, 3)


def test_the_pickle_is_read_only_if_one_says_so(petastorm: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "frames", schema_of(petastorm))
    with pytest.raises(ValueError, match="trust_pickle=True if you know who wrote it"):
        yoga.from_petastorm(folder)
    plain = yoga.from_parquet(folder)  # without it, arrays are bytes
    assert plain[0]["matrix"] == saved(MATRIX[0])
    with pytest.raises(NotFoundError, match="has no _common_metadata"):
        trusted(folder / "part=p_0")
    pq.write_metadata(pa.schema([("x", pa.int64())]), folder / "_common_metadata")
    with pytest.raises(NotFoundError, match="has no schema of Petastorm's"):
        trusted(folder)


class Runs:
    """Would write a file if it were unpickled as pickles are."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.write_text, (self.path, "run")


def hostile(path: Path) -> list[bytes]:
    return [
        pickle.dumps(Runs(path)),
        b"cos\nsystem\n(S'touch " + str(path).encode() + b"'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n.",
        b"cpetastorm.codecs\nNdarrayCodec\n.",
        b"ccopy_reg\n_reconstructor\n(c__builtin__\nobject\nc__builtin__\nobject\nNtR.",
        b"cpetastorm.unischema\nUnischema\n)\x81}(X\x07\x00\x00\x00_fieldsK\x01ub.",
        b"cpetastorm.etl.dataset_metadata\nmaterialize_dataset\n.",
        b"cpetastorm.codecs.os\nsystem\n.",
        b"",
        b"\x80\x04",
        b"garbage",
    ]


@pytest.mark.parametrize("number", range(len(hostile(Path()))))
def test_a_hostile_pickle_runs_nothing(number: int, tmp_path: Path) -> None:
    folder = write(tmp_path / "frames", hostile(tmp_path / "run")[number])
    with pytest.raises(CorruptError, match="_common_metadata: "):
        trusted(folder)
    assert not (tmp_path / "run").exists()


def test_pickles_of_sparks_namedtuples_are_read(petastorm: Any, tmp_path: Path) -> None:
    codecs, schemas, _ = petastorm
    restored = module_of("pyspark.serializers")

    def _restore(*_: Any) -> None: ...

    _restore.__module__, _restore.__qualname__ = "pyspark.serializers", "_restore"
    vars(restored)["_restore"] = _restore
    sys.modules["pyspark.serializers"] = restored

    class Hijacked:
        def __reduce__(self) -> Any:
            values = ("small", np.uint8, (), with_state(codecs.ScalarCodec), False)
            return _restore, ("UnischemaField", ("name",), values)

    hijacked = pickle.dumps(with_state(schemas.Unischema, _fields=OrderedDict(small=Hijacked())), 2)
    forget()
    ref = trusted(write(tmp_path / "frames", hijacked), ["id", "small"])
    assert ref[4]["small"].dtype == np.uint8


def test_what_does_not_fit_the_schema_is_named(petastorm: Any, tmp_path: Path) -> None:
    other = {"Other": ("matrix", np.float32, (2, 3), with_state(petastorm[0].Other), False)}
    with pytest.raises(SchemaError, match="column 'matrix' has the codec 'Other'"):
        trusted(write(tmp_path / "a", schema_of(petastorm, *other.values())))
    text = ("texts", np.str_, (None,), with_state(petastorm[0].NdarrayCodec), False)
    folder = write(tmp_path / "b", schema_of(petastorm, text), texts=[saved(np.array(["a"]))] * N)
    with pytest.raises(SchemaError, match="column 'texts' holds arrays of text"):
        trusted(folder)
    assert len(trusted(folder, ["id"])) == N


def wrong() -> dict[str, tuple[str, bytes, str]]:
    whole = saved(MATRIX[0])
    return {
        "shape": ("matrix", saved(MATRIX[0][:1]), r"an array of float32 \(1, 3\)"),
        "dtype": ("matrix", saved(MATRIX[0].astype(np.float64)), "an array of float64"),
        "cut": ("matrix", whole[:-4], "an array of"),
        "header": ("matrix", whole[:40], "not an array as numpy.save"),
        "objects": ("matrix", whole.replace(b"'<f4'", b"'|O' "), "not an array as numpy.save"),
        # At this dtype NumPy ends the process.
        "unit": (
            "matrix",
            whole.replace(b"'<f4'", b"'<M8[s/0]'").replace(b" " * 5 + b"\n", b"\n"),
            "not an array",
        ),
        "text": ("matrix", b"hello", "not an array as numpy.save"),
        "no zip": ("packed", b"hello", "not an array as numpy.savez_compressed"),
        "bomb": ("packed", packed(np.zeros(10**7, np.uint16)), "more than its shape needs"),
        "damaged zip": (
            "packed",
            packed(PACKED[0]).replace(b"\x93NUMPY", b"\x93NUMPX")[:-60],
            "not an array",
        ),
        "points": ("points", saved(np.zeros((2, 4))), r"an array of float64 \(2, 4\)"),
    }


@pytest.mark.parametrize("name", wrong())
def test_a_damaged_value_is_named_by_file_column_and_row(name: str, petastorm: Any, tmp_path: Path) -> None:
    column, value, message = wrong()[name]
    values = {"matrix": MATRIX, "packed": PACKED, "points": POINTS}[column]
    good = [packed(one) if column == "packed" else saved(one) for one in values]
    folder = write(tmp_path / "x", schema_of(petastorm), **{column: [*good[:1], value, *good[2:]]})
    ref = trusted(folder)
    text = rf"x\.parquet, row group 0, column '{column}', row 1: .*{message}"
    with pytest.raises(CorruptError, match=text):
        ref[0]


def test_decimals_keep_their_meaning(petastorm: Any, tmp_path: Path) -> None:
    field = ("price", decimal.Decimal, (), with_state(petastorm[0].ScalarCodec), False)
    prices = pa.array([decimal.Decimal("1.50")] * N, pa.decimal128(10, 2))
    ref = trusted(write(tmp_path / "x", schema_of(petastorm, field), price=prices))
    assert ref[2]["price"] == decimal.Decimal("1.50")
