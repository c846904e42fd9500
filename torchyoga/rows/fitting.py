"""Values of one type -> the same values as a column of another type holds them, where nothing is lost."""

from __future__ import annotations

import numpy as np

from ..errors import SchemaError
from ..process.lazy import torch
from .column import Column
from .encoding import look_of
from .leaf import Leaf, as_text, encode, letter_of
from .node import Node
from .types import Array, Row

_TEXTS = (frozenset({"str", "numpy.str"}), frozenset({"bytes", "numpy.bytes"}))
_RANKS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}  # a value fits no type of a lower one
_NO_NUMBERS = frozenset({"none", "time", "decimal"}).union(*_TEXTS)


def fitted_leaf(column: Column, leaf: Leaf) -> Leaf:
    """A leaf as its column holds it, if that loses nothing: an int as a float, an array as a tensor, the name
    of a code as the code. A leaf that has no place in such a column comes back as it is.

    Raises:
        SchemaError: something would be lost; says what to do.

    Example:
        >>> from torchyoga.rows.column import Column
        >>> fitted_leaf(Column("x", "scalar", "<f4", (), 0), encode(5))[:3]
        ('scalar', '<f4', array(5., dtype=float32))
    """
    words = column.meaning.words
    if words is not None and leaf.kind in _TEXTS[0]:
        leaf = encode(_code_of(column.name, words, as_text(leaf.array.tobytes())))
    elif words is not None:
        _check_codes(column.name, words, leaf)
    if (leaf.kind, leaf.dtype) == (column.kind, column.dtype):
        return leaf
    if any({leaf.kind, column.kind} <= alike for alike in _TEXTS):
        return leaf._replace(kind=column.kind)
    letters = [letter_of(one.kind, one.dtype) for one in (leaf, column)]
    if any(one.kind in _NO_NUMBERS for one in (leaf, column)):
        return leaf
    are_times = letters[0] == letters[1] and letters[0] in "mM"
    if not are_times and not {*letters} <= _RANKS.keys():
        return leaf
    made = None
    if are_times or _RANKS[letters[0]] <= _RANKS[letters[1]]:
        made = _without_loss(leaf, column)
    if made is None:
        value = f" {leaf.array.item()!r:.40}" if leaf.array.size == 1 else ""
        to = column.dtype if column.kind == "tensor" else column.storage
        raise SchemaError(
            f"column {column.name!r}: expected {column.kind} {column.dtype}, found {look_of(leaf)}{value}, "
            f"which does not fit without loss; if that does not matter, convert the new rows to {to} before"
        )
    return Leaf(column.kind, column.dtype, made, leaf.meaning)


def _code_of(name: str, words: tuple[str, ...], word: str) -> int:
    """The code of a name; SchemaError if it has none."""
    if word not in words:
        raise SchemaError(
            f"column {name!r}: {word!r:.80} is none of its {len(words)} names, {', '.join(words)[:200]}; "
            "pass codes with names, which may be new: dictionary_encode() of pyarrow, a Categorical of "
            "pandas, a ClassLabel"
        )
    return words.index(word)


def _check_codes(name: str, words: tuple[str, ...], leaf: Leaf) -> None:
    """Raises SchemaError if numbers are no codes of these names."""
    letter, codes = letter_of(leaf.kind, leaf.dtype), leaf.array
    most = max(1, len(words)) - 1  # without names, all values are None, kept as 0
    if letter == "b" or (letter in "iu" and codes.size and not 0 <= codes.min() <= codes.max() <= most):
        raise SchemaError(
            f"column {name!r}: expected codes of its {len(words)} names, 0 to {most}, found "
            f"{codes.tolist()!r:.80}; pass the names, or codes with names, which may be new"
        )


def _without_loss(leaf: Leaf, column: Column) -> Array | None:
    """The values of a leaf in the dtype of a column; None if others would come back."""
    given = _numbers(leaf)
    with np.errstate(all="ignore"):  # what overflows does not come back
        if column.kind == "tensor":
            found = encode(torch.from_numpy(given).to(getattr(torch, column.dtype)))
        else:
            found = Leaf(column.kind, column.dtype, given.astype(column.storage))
        made = _numbers(found)
        if given.dtype.kind in "iu" and letter_of(column.kind, column.dtype) in "fc":
            about = (
                torch.finfo(getattr(torch, column.dtype)) if column.kind == "tensor" else np.finfo(made.dtype)
            )
            most = int(2 / about.eps)  # up to here a float has every whole number
            is_same = not given.size or (int(given.min()) >= -most and int(given.max()) <= most)
        else:
            back = (made.real if given.dtype.kind in "bf" else made).astype(given.dtype)
            is_same = bool(((back == given) | ((back != back) & (given != given))).all())
            if made.dtype.kind in "iu" and given.dtype.kind in "iu":
                is_same = is_same and bool(((made < 0) == (given < 0)).all())
    return found.array if is_same else None


def _numbers(leaf: Leaf) -> Array:
    """The values of a leaf as NumPy has them: of floats that it lacks, as float64."""
    if letter_of(leaf.kind, leaf.dtype) == "f" and leaf.array.dtype.kind == "u":
        return torch.from_numpy(leaf.array).view(getattr(torch, leaf.dtype)).double().numpy()
    return leaf.array.astype(leaf.array.dtype.newbyteorder("="), copy=False)


def nested_as(node: Node, value: Row) -> Row:
    """A row in the containers that `node` says, if it has as many values: a list, a tuple and an array of one
    shape hold the same.

    Example:
        >>> nested_as(Node("list", (), (Node("leaf"), Node("leaf"))), np.array([1, 2]))
        [1, 2]
    """
    if node.kind == "nullable":
        return None if value is None else nested_as(node.children[0], value)
    if node.kind == "leaf":
        return _array(value) if type(value) in (list, tuple) else value
    if node.kind == "dict":
        is_like = type(value) is dict and value.keys() == set(node.keys)
        pairs = zip(node.keys, node.children, strict=True)
        return {key: nested_as(child, value[key]) for key, child in pairs} if is_like else value
    if isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim:
        value = value.tolist()
    if type(value) not in (list, tuple) or (node.kind != "varying" and len(value) != len(node.children)):
        return value
    if node.kind == "varying":
        return [nested_as(node.children[0], item) for item in value]
    found = [nested_as(child, item) for child, item in zip(node.children, value, strict=True)]
    if node.kind == "namedtuple":
        return value if type(value) is list else tuple.__new__(node.row_type, found)
    return found if node.kind == "list" else tuple(found)


def _array(items: Row) -> Row:
    """A list of numbers, or of lists of them, as an array; else as it is."""
    try:
        found = np.asarray(items)
    except ValueError:  # lists of different lengths
        return items
    return found if found.dtype.kind in "biufc" else items
