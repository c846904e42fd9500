"""A published version -> the same rows in files of their own, of any format."""

from __future__ import annotations

from dataclasses import replace

from ..adapters.sources import dataset_and_source
from ..building.build import BuildOptions, Target, build
from ..reading.version_ref import VersionRef
from ..rows.types import Json
from ..stores.refs import fetched, ref_of
from .grown import in_format_of

_KEPT = ("function", "code", "source", "message")  # entries of the lineage of the code that made the rows


def converted(
    version: str,
    target: Target,
    options: BuildOptions,
    keeps_format: bool,
    compression: str | None,
) -> VersionRef:
    """Publishes the rows of a version in files of their own; see `Storage.convert`. Hold the target's lock.

    Args:
        version: a version of the target's id.
        target: where the rows are to be published.
        options: how to build.
        keeps_format: the files have the format and the compression of the version.
        compression: another compression then; None for that of the version.
    """
    whole = fetched(target.store, target.id, version)
    old, own = whole.manifest, options.lineage
    if keeps_format:
        options = in_format_of(old, options)
        options = replace(options, compression=compression or options.compression)

    def lineage(seconds: float) -> Json:
        made = {} if own is None else own(seconds)
        return {**{name: old.lineage[name] for name in _KEPT if name in old.lineage}, **made} if made else {}

    encode = options.encode
    is_recoded = encode is not None
    parents = [replace(parent, is_prefix=parent.is_prefix and not is_recoded) for parent in old.parents]
    if target.version != version:
        parents = [*old.parents, old.as_parent(is_prefix=not is_recoded)]
    options = replace(options, info=old.info, function=old.function, parents=tuple(parents), lineage=lineage)
    plainer, encoded = (whole, None) if encode is None else encode(whole)
    _, source = dataset_and_source(plainer)
    if encoded is not None:
        source = encoded(source)
    return ref_of(target.store, build(source, target, options))
