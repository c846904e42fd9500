"""The reference: an entry for every public name, by group, made from docstrings; a page for each class.

A public name that is in no group, or in two, ends the build with a message that says so. On the page of a
class, what users call comes first, and what a subclass needs last.
"""

from __future__ import annotations

import inspect
import pydoc
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

from docutils import nodes
from outside import write
from sphinx import addnodes
from sphinx.errors import ConfigError
from sphinx.util.inspect import stringify_signature

if TYPE_CHECKING:
    from docutils.parsers.rst.states import Inliner
    from sphinx.application import Sphinx

REFERENCE = Path(__file__).parents[1] / "generated" / "reference"
CLASSES = REFERENCE / "classes"
# Classes of others: what they have is described where they come from.
_NOT_OURS = "DataLoader, DistributedSampler, BatchSampler, Sampler, Sequence, PyDataset, Callback, tuple"
# Modules whose docstrings are for users; those of others are notes for people who change them.
_DESCRIBED = ["torchyoga.testing", "torchyoga.compat.yogadl"]
_PAGE = re.compile(r"\bdocs/(\w+)\.md")
_NAME = re.compile(r"\w+(\.\w+)*")
PUBLIC = ["torchyoga", "torchyoga.codecs", "torchyoga.errors", "torchyoga.testing", "torchyoga.compat.yogadl"]
# What users call of modules that load a framework; their __all__ also has what other modules need.
FRAMEWORKS = {
    "torchyoga.adapters.keras": ["Checkpoint", "KerasDataset", "as_dataref", "make_keras_dataset"],
    "torchyoga.adapters.tensorflow": ["make_tf_dataset"],
}


# The members of a class, by page and section, in the order in which they are read; the others come last, for
# they are what a subclass gives, or what trainers ask for.
PAGES_OF = {
    "torchyoga.DataRef": {
        "DataRef": {
            "Rows and columns": ["columns", "where", "select", "order_by", "split", "repeat", "zip"],
            "What is in it": ["schema", "info", "classes", "class_to_idx", "stats", "fingerprint"],
            "Out of it": ["stream", "to_pandas", "to_polars", "to_arrow", "to_huggingface", "to_parquet"],
        },
        "DataRef: rows that change": {
            "Functions": ["map", "map_batches", "decoded"],
            "None": ["filled", "masked"],
            "In sequence": ["windows"],
        },
        "DataRef: what goes into a batch": {
            "Shares and order": ["weighted", "balanced"],
            "Lengths": ["packed", "token_windows", "token_batches", "bucketed"],
        },
    },
    "torchyoga.Storage": {
        "Storage": {
            "Keep and fetch": ["cacheable", "submit", "fetch", "list", "versions", "path"],
            "Copy, check, remove": ["copy", "check", "remove", "clean"],
        },
        "Storage: versions": {
            "Versions made from others": ["append", "add_columns", "drop_columns", "delete_rows", "convert"],
            "Tags and history": ["tag", "tags", "log"],
        },
    },
    "torchyoga.DataLoader": {
        "DataLoader": {
            "Stop and resume": [
                "state_dict",
                "load_state_dict",
                "state_after",
                "epoch",
                "steps",
                "set_epoch",
                "peek",
            ],
            "What came, and what it cost": ["prove", "receipt", "rows_in_step", "position_of", "meter"],
        }
    },
}
REST = {"torchyoga.DataRef": "A DataRef of your own", "torchyoga.Storage": "More"}


class Group(NamedTuple):
    """A page of the reference."""

    title: str
    about: str
    module: str
    names: Sequence[str]
    results: Sequence[str] = ()  # what these return, by module: shown, but not to be imported from there


GROUPS = {
    "storages": Group(
        "Storages and versions",
        "Keep a dataset once, fetch it anywhere, compare versions.",
        "torchyoga",
        ["Storage", "diff"],
        [
            "torchyoga.caching.diff.Diff",
            "torchyoga.stores.history.VersionLog",
            "torchyoga.stores.history.LogEntry",
            "torchyoga.stores.history.TagEntry",
        ],
    ),
    "datasets": Group(
        "Datasets and views",
        "Rows by number, and what can be made of them.",
        "torchyoga",
        ["DataRef", "Stream", "Schema", "RaggedColumn", "concat", "mix"],
        ["torchyoga.views.mix.MixRef", "torchyoga.views.packs.packed.PackReport"],
    ),
    "looks": Group(
        "Report and view",
        "What is in a dataset, as a page or live: :doc:`/measure`.",
        "torchyoga",
        ["report", "view"],
        ["torchyoga.tools.view.view.View"],
    ),
    "sources": Group(
        "Sources",
        "Data that you have already, as a dataset.",
        "torchyoga",
        [
            "from_arrays",
            "from_hdf5",
            "from_zarr",
            "from_parquet",
            "from_arrow",
            "from_huggingface",
            "image_folder",
            "flat_map",
        ],
    ),
    "foreign": Group(
        "Files of other loaders",
        "Tokens, shards and caches that were written for another loader, read as they are.",
        "torchyoga",
        [
            "from_jsonl",
            "from_tokens",
            "from_megatron",
            "from_mds",
            "from_litdata",
            "from_tfrecord",
            "from_petastorm",
            "from_lmdb",
            "webdataset",
        ],
    ),
    "loading": Group(
        "Loading",
        "Batches, in an order that can be stopped and continued.",
        "torchyoga",
        [
            "DataLoader",
            "ResumableSampler",
            "Checkpoint",
            "ResumableBatchSampler",
            "to_device",
            "jagged",
            "padded",
            "prove",
            "shuffle_quality",
            "ShuffleQuality",
        ],
        ["torchyoga.loading.loader.DeviceLoader", "torchyoga.order.proof.Proof"],
    ),
    "meter": Group(
        "Meter and doctor",
        "How long the loop waited for data, and what for, and what is wrong: :doc:`/measure`.",
        "torchyoga",
        ["doctor"],
        [
            "torchyoga.tools.meter.Meter",
            "torchyoga.tools.meter_advice.Numbers",
            "torchyoga.tools.doctor.diagnosis.Diagnosis",
            "torchyoga.tools.doctor.diagnosis.Finding",
        ],
    ),
    "coding": Group(
        "Images, sound and text",
        "Columns that are kept encoded, and decoded into the batch.",
        "torchyoga.codecs",
        ["image", "audio", "text", "jpeg", "png", "flac", "zstd"],
    ),
    "errors": Group(
        "Errors",
        "What torchyoga raises; :doc:`/guarantees` says what to do about each.",
        "torchyoga.errors",
        [
            "YogaError",
            "SchemaError",
            "StateError",
            "NotFoundError",
            "ExistsError",
            "BusyError",
            "LostError",
            "RemoteError",
            "CorruptError",
        ],
    ),
    "testing": Group(
        "Kits for tests",
        "Is a dataset, view, store, source or loader of your own as it must be?",
        "torchyoga.testing",
        ["check_dataref", "check_view", "check_resume", "check_source", "check_store", "assert_rows_equal"],
    ),
    "keras": Group(
        "Keras",
        "Batches for Keras, and checkpoints that hold the place in the data.",
        "torchyoga.adapters.keras",
        FRAMEWORKS["torchyoga.adapters.keras"],
    ),
    "tensorflow": Group(
        "TensorFlow",
        "Datasets for tf.data.",
        "torchyoga.adapters.tensorflow",
        FRAMEWORKS["torchyoga.adapters.tensorflow"],
    ),
    "yogadl": Group(
        "yogadl's interface",
        "For programs that were written for yogadl.",
        "torchyoga.compat.yogadl",
        ["Storage", "DataRef", "Stream", "Submittable"],
    ),
}


def located(module: str) -> ModuleType:
    """A module by its public name."""
    found = pydoc.locate(module)
    assert isinstance(found, ModuleType), f"{module} is not there"
    return found


def public_names() -> list[str]:
    """All public names, with their modules: the `__all__` of those that users import."""
    names = [f"{module}.{name}" for module in PUBLIC for name in located(module).__all__]
    names += [f"{module}.{name}" for module, chosen in FRAMEWORKS.items() for name in chosen]
    return [name for name in names if name not in ("torchyoga.codecs", "torchyoga.errors")]  # pages


def check(groups: dict[str, Group] = GROUPS) -> None:
    """Raises ConfigError unless every public name is in one group, and nothing else is."""
    grouped = Counter(f"{group.module}.{name}" for group in groups.values() for name in group.names)
    public = public_names()
    for name in public:
        if grouped[name] != 1:
            found = "in no group" if not grouped[name] else f"in {grouped[name]} groups"
            raise ConfigError(f"{name} is {found} of docs/extensions/reference.py: put it into one")
    for name in grouped:
        if name not in public:
            raise ConfigError(
                f"{name} is in docs/extensions/reference.py, but is not public: take it out there"
            )
    for group in groups.values():
        for name in group.results if group.module not in FRAMEWORKS else ():
            module, _, last = name.rpartition(".")
            if not hasattr(located(module), last):
                raise ConfigError(
                    f"{name} is in docs/extensions/reference.py, and is not there: say where it is"
                )


def _kind(name: str) -> str:
    module, _, last = name.rpartition(".")
    if module in FRAMEWORKS:
        return "class" if last[0].isupper() else "function"  # a look would load the framework
    value = getattr(located(module), last)
    if inspect.isclass(value):
        return "exception" if issubclass(value, Exception) else "class"
    return "function" if callable(value) else "data"


def _entry(name: str) -> str:
    kind, module = _kind(name), name.rpartition(".")[0]
    entry = f".. auto{kind}:: {name}\n"
    if kind == "exception":
        return entry + "   :show-inheritance:\n"
    if kind != "class":
        return entry
    # What a result inherits is on the page of that class.
    is_view = name.endswith("Ref") and name != "torchyoga.DataRef"
    others = f"{_NOT_OURS}, DataRef, Contract" if is_view else _NOT_OURS
    entry += f"   :members:\n   :inherited-members: {others}\n"
    # A NamedTuple's stand under its Attributes.
    fields = (
        ()
        if module in FRAMEWORKS
        else getattr(getattr(located(module), name.rpartition(".")[2]), "_fields", ())
    )
    return entry + (f"   :exclude-members: {', '.join([*fields, 'count', 'index'])}\n" if fields else "")


def _heading(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n\n"


def members(value: type) -> list[str]:
    """The public members of a class of ours that have a docstring, its own before those that it inherits."""
    ours = [one for one in value.__mro__ if one.__name__ not in _NOT_OURS.split(", ") or one is value]
    names = [name for one in ours if one.__module__.startswith("torchyoga") for name in vars(one)]
    return [
        name for name in dict.fromkeys(names) if name[0] != "_" and inspect.getdoc(getattr(value, name, None))
    ]


def _member(name: str, member: str) -> str:
    module, _, last = name.rpartition(".")
    found = inspect.getattr_static(getattr(located(module), last), member)
    is_method = isinstance(found, (FunctionType, classmethod, staticmethod))
    kind = "method" if is_method else "property" if isinstance(found, property) else "attribute"
    return f".. auto{kind}:: {name}.{member}\n"


def class_pages(name: str) -> dict[str, str]:
    """The pages of a class, by the names of their files; most have one."""
    module, _, last = name.rpartition(".")
    if name not in PAGES_OF:
        return {last: _heading(last, "=") + _entry(name)}
    listed = [one for page in PAGES_OF[name].values() for section in page.values() for one in section]
    rest = [one for one in members(getattr(located(module), last)) if one not in listed]
    found = {}
    for title, sections in PAGES_OF[name].items():
        text = _heading(title, "=")
        if title == last:
            text += f".. autoclass:: {name}\n\n"
            more = [f":doc:`{_file(other)}`" for other in PAGES_OF[name] if other != last]
            text += f"More of it: {', '.join(more)}.\n\n" * bool(more)
            sections = {**sections, REST.get(name, "For trainers, and for subclasses"): rest}
        else:
            text += f"More of :class:`{name}`.\n\n"
        for section, names in sections.items():
            text += (
                _heading(section, "-") * bool(names) + "\n".join(_member(name, one) for one in names) + "\n"
            )
        found[_file(title)] = text
    return found


def _file(title: str) -> str:
    return re.sub(r"\W+", "-", title)


def _has_page(name: str) -> bool:
    return name.startswith("torchyoga.") and name.count(".") == 1 and _kind(name) == "class"


def page(group: Group) -> str:
    """The text of a group's page."""
    text = f"{_heading(group.title, '=')}{group.about}\n\n"
    if group.module in _DESCRIBED:
        text += f".. automodule:: {group.module}\n\n"
    names = [f"{group.module}.{name}" for name in group.names]
    classes = [name for name in names if _has_page(name)]
    for name in classes:
        first = (inspect.getdoc(getattr(located(group.module), name.rpartition(".")[2])) or "").partition(
            "\n\n"
        )[0]
        text += f":class:`{name}`\n    {' '.join(first.split())}\n\n"
    files = [file for name in classes for file in class_pages(name)]
    if files:
        text += ".. toctree::\n   :hidden:\n\n" + "".join(f"   classes/{file}\n" for file in files) + "\n"
    text += "\n".join(_entry(name) for name in names if name not in classes)
    if group.results:
        text += f"\n{_heading('Results', '-')}What the above return; nothing to import.\n\n"
        text += "\n".join(_entry(name) for name in group.results)
    return text


def _role(
    role: str,
    rawtext: str,
    text: str,
    lineno: int,
    inliner: Inliner,
    options: dict[str, object] | None = None,
    content: Sequence[str] = (),
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """Code in single backticks; a public name, and what is in it, leads to its entry."""
    del role, rawtext, lineno, options, content
    code = nodes.literal(text, text, classes=["xref", "py"])
    path = text.removesuffix("()").removeprefix("torchyoga.").removeprefix("yoga.")
    is_name = path != text or path[:1].isupper() or "_" in path  # `text` or `image` is rather an argument
    path = path.removeprefix("errors.").removeprefix("testing.")
    modules = [group.module for group in GROUPS.values() if path.partition(".")[0] in group.names]
    if not is_name or not modules or not _NAME.fullmatch(path):
        return [code], []
    # "DataRef" and "Storage" are names of yogadl's, too; torchyoga's groups come first.
    link = addnodes.pending_xref(
        "", code, refdomain="py", reftype="obj", reftarget=f"{modules[0]}.{path}", refexplicit=True
    )
    link["refdoc"] = inliner.document.settings.env.docname
    return [link], []


def _write_pages(app: Sphinx) -> None:
    del app
    check()
    pages = {REFERENCE / f"{name}.rst": page(group) for name, group in GROUPS.items()}
    for name in filter(_has_page, public_names()):
        pages |= {CLASSES / f"{file}.rst": text for file, text in class_pages(name).items()}
    for path, text in pages.items():
        write(path, text)
    for found in set(REFERENCE.rglob("*.rst")) - set(pages):
        found.unlink()  # of an earlier build


def _sign(
    app: Sphinx,
    what: str,
    name: str,
    thing: type,
    options: object,
    arguments: str | None,
    returns: str | None,
) -> tuple[str, str | None] | None:
    """The arguments of a class over one of a framework that is not here, which takes any."""
    del app, options, arguments
    if what != "class" or name.rpartition(".")[0] not in FRAMEWORKS:
        return None
    signature = inspect.signature(thing.__init__)  # type: ignore[misc]
    parameters = list(signature.parameters.values())[1:]
    signature = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return stringify_signature(signature), returns


def _lead_to_pages(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Makes links of the pages of docs/ that a docstring names."""
    del app, what, name, thing, options
    lines[:] = [_PAGE.sub(r":doc:`docs/\1.md </\1>`", line) for line in lines]


def _keep_whole(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Keeps napoleon from taking what is before a colon in the first line of a property for its type.

    Types are annotated here. An empty comment becomes the first line.
    """
    del app, name, thing, options
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]


def _lead_back(app: Sphinx, name: str, template: str, context: dict[str, str], tree: object) -> None:
    """Corrects links from sources to entries: a module's are all said to be of the first name's module."""
    del app, template, tree
    if name.startswith("_modules/") and "body" in context:
        for result in (result for group in GROUPS.values() for result in group.results):
            wrong = f"#torchyoga.{result.rpartition('.')[2]}"
            context["body"] = re.sub(rf"{re.escape(wrong)}(?=[\".])", f"#{result}", context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Writes the pages before they are looked for, and adds the role of names in docstrings."""
    app.add_role("name", _role)
    app.connect("builder-inited", _write_pages)
    app.connect("autodoc-process-signature", _sign)
    app.connect("autodoc-process-docstring", _lead_to_pages)
    app.connect("autodoc-process-docstring", _keep_whole, priority=100)  # before napoleon
    app.connect("html-page-context", _lead_back)
    return {"parallel_read_safe": True}
