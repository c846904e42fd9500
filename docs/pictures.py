"""Draws the pictures of caching.md, resume.md, views.md and mixtures.md.

python docs/pictures.py
"""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

import torchyoga as yoga

COLOURS = ["#4c78a8", "#f58518", "#54a24b"]
IMAGES = Path(__file__).parent / "images"
plt.rcParams.update({"font.size": 9, "svg.fonttype": "path", "svg.hashsalt": "torchyoga"})


def cell(axes: Any, x: float, y: float, text: str, colour: str, hollow: bool = False) -> None:
    """A row number in a box."""
    face = "white" if hollow else colour
    axes.add_patch(plt.Rectangle((x, y), 0.92, 0.8, facecolor=face, edgecolor=colour, linewidth=1.5))
    ink = colour if hollow else "white"
    axes.text(x + 0.46, y + 0.38, text, ha="center", va="center", color=ink, weight="bold")


def label(axes: Any, y: float, text: str) -> None:
    """What a line of boxes is."""
    axes.text(-0.3, y + 0.38, text, ha="right", va="center", color="black")


def save(figure: Any, axes: Any, name: str) -> None:
    """Writes the picture, the same bytes each time."""
    axes.set_aspect("equal")
    axes.axis("off")
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / name, bbox_inches="tight", facecolor="white", metadata={"Date": None})


def order() -> None:
    """One epoch of ten rows for 1, 2 and 3 ranks, and the policies at its end."""
    whole = list(yoga.ResumableSampler(10, seed=7))
    figure, axes = plt.subplots(figsize=(8, 3.6))
    axes.set_xlim(-5.2, 12.2)
    axes.set_ylim(-6.4, 1.7)
    for position in range(12):
        axes.text(position + 0.46, 1.2, str(position), ha="center", color="gray", size=8)
    label(axes, 1.0, "position in the epoch")
    lines = [("1 rank", 1, "keep"), ("2 ranks", 2, "keep")]
    lines += [(f"3 ranks, {policy!r}", 3, policy) for policy in ("keep", "drop", "pad")]
    for y, (name, world, policy) in enumerate(lines):
        label(axes, -1.2 * y, name)
        taken = {}
        for rank in range(world):
            sampler = yoga.ResumableSampler(10, seed=7, num_replicas=world, rank=rank, remainder=policy)
            taken |= {rank + world * i: (row, rank) for i, row in enumerate(sampler)}
        for position, (row, rank) in taken.items():
            assert row == whole[position % 10]
            cell(axes, position, -1.2 * y, str(row), COLOURS[rank], hollow=position >= 10)
        if policy == "drop":
            axes.text(9.1, -1.2 * y + 0.38, "left out", va="center", color="gray", size=8)
    for rank in range(3):
        cell(axes, 3 * rank, -6.3, "row", COLOURS[rank])
        axes.text(3 * rank + 1.1, -5.92, f"rank {rank}", va="center", color="black")
    cell(axes, 9, -6.3, "row", COLOURS[0], hollow=True)
    axes.text(10.1, -5.92, "again", va="center", color="black")
    save(figure, axes, "order.svg")


def views() -> None:
    """The way of each position of an epoch through a nest of views to a row of a version."""
    version = yoga.from_arrays({"label": np.array([3, 8, 1, 0, 9, 4, 7, 2, 8, 0, 1, 6])})
    low = version.where("label", lambda label: label < 5)
    part = low[1:6]
    twice = part.repeat(2)
    positions = np.fromiter(yoga.ResumableSampler(twice, seed=3), np.int64)
    levels = [("position in the epoch, shuffled", len(twice)), (".repeat(2)", len(twice))]
    levels += [("[1:6]", len(part)), ('.where("label", ...)', len(low)), ("the version", len(version))]
    steps = [lambda place: int(positions[place])]
    steps += [lambda row, view=view: int(view.rows_at(np.array([row]))[0]) for view in (twice, part, low)]
    figure, axes = plt.subplots(figsize=(8, 4.2))
    axes.set_xlim(-7.4, 12.6)
    axes.set_ylim(-9, 1.2)
    for y, (name, count) in enumerate(levels):
        label(axes, -1.9 * y, name)
        for number in range(count):
            cell(axes, number, -1.9 * y, str(number), COLOURS[0], hollow=True)
    for place in range(len(twice)):
        chosen = place in (2, 6)
        colour, row = COLOURS[1 + (place == 6)] if chosen else "#d8d8d8", place
        for y, step in enumerate(steps):
            following = step(row)
            axes.plot(
                [row + 0.46, following + 0.46],
                [-1.9 * y, -1.9 * (y + 1) + 0.8],
                color=colour,
                linewidth=1.8 if chosen else 0.8,
                zorder=2 if chosen else 0,
            )
            if chosen:
                cell(axes, row, -1.9 * y, str(row), colour)
                cell(axes, following, -1.9 * (y + 1), str(following), colour)
            row = following
        assert twice[int(positions[place])]["label"] == version[row]["label"]
    for start, stop, name in ((0, 6, "file 0"), (6, 12, "file 1")):
        axes.plot([start, stop - 0.1], [-7.95, -7.95], color="gray", linewidth=1)
        axes.text((start + stop) / 2, -8.5, name, ha="center", va="center", color="gray")
    save(figure, axes, "views.svg")


def resume() -> None:
    """An epoch of twenty rows, stopped after two batches on 2 ranks, continued by 3 ranks."""
    figure, axes = plt.subplots(figsize=(9, 2.6))
    axes.set_xlim(-5.4, 21)
    axes.set_ylim(-4.6, 2)
    for position in range(20):
        axes.text(position + 0.46, 1.2, str(position), ha="center", color="gray", size=8)
    label(axes, 1.0, "position in the epoch")
    first = [loader(2, rank, 3) for rank in range(2)]
    for rank, one in enumerate(first):
        batches = iter(one)
        for step in range(2):
            for i, row in enumerate(next(batches).tolist()):
                cell(axes, step * 6 + i * 2 + rank, 0, str(row), COLOURS[rank])
    state = first[0].state_dict()
    stop = state["position"]
    assert stop == 12
    assert state == first[1].state_dict()
    label(axes, 0, "2 ranks, batches of 3")
    label(axes, -1.4, "3 ranks, batches of 2")
    for rank in range(3):
        one = loader(3, rank, 2)
        one.load_state_dict(state)
        rows = [row for batch in one for row in batch.tolist()]
        for i, row in enumerate(rows):
            cell(axes, stop + 3 * i + rank, -1.4, str(row), COLOURS[rank])
    axes.plot([stop - 0.04] * 2, [-2.2, 1.1], color="black", linestyle="--", linewidth=1)
    text = f'the state, on every rank:  "epoch": {state["epoch"]}, "position": {stop}'
    axes.text(stop, -2.9, text, ha="center", color="black")
    for rank in range(3):
        cell(axes, 2 + 5 * rank, -4.4, "row", COLOURS[rank])
        axes.text(3.2 + 5 * rank, -4.02, f"rank {rank}", va="center", color="black")
    save(figure, axes, "resume.svg")


def loader(world: int, rank: int, size: int) -> yoga.DataLoader:
    """A loader of twenty rows."""
    data = list(range(20))
    return yoga.DataLoader(data, size, True, seed=7, num_replicas=world, rank=rank, remainder="keep")


class Files:
    """Two thousand rows in forty files."""

    file_starts = np.arange(0, 2001, 50)

    def __len__(self) -> int:
        return 2000


def shuffle() -> None:
    """Which row comes at which position: full, by blocks, and not shuffled; each colour is a file."""
    kinds: list[tuple[str, Any]] = [
        ("shuffle=True", True),
        ('shuffle="block"', "block"),
        ("shuffle=False", False),
    ]
    figure, panels = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True)
    colours = np.array(COLOURS)
    for axes, (title, kind) in zip(panels, kinds, strict=True):
        rows = yoga.ResumableSampler(Files(), shuffle=kind, seed=7, shuffle_window=4).rows_at(range(2000))
        axes.scatter(
            range(2000), rows, s=1.2, c=colours[rows // 50 % len(colours)], linewidths=0, rasterized=True
        )
        quality = yoga.shuffle_quality(Files(), kind, shuffle_window=4)
        axes.set_title(title)
        files = "1 file" if quality.files_at_once == 1 else f"{quality.files_at_once} files"
        axes.set_xlabel(f"position in the epoch\n{files} at once, randomness {quality.randomness:.0%}")
        axes.set_xlim(0, 2000)
        axes.set_ylim(0, 2000)
    panels[0].set_ylabel("row")
    options = {"bbox_inches": "tight", "facecolor": "white", "metadata": {"Date": None}}
    figure.savefig(IMAGES / "shuffle.svg", dpi=200, **options)


def mixture() -> None:
    """How far each prefix is off its weights: a mixture, and a source drawn at random for each row."""
    weights, rows = {"web": 6, "code": 3, "math": 1}, 20_000
    sources = {name: yoga.from_arrays({"x": np.zeros(5000)}) for name in weights}
    mix = yoga.mix(sources, weights, rows=rows, source_column="source")
    mixed = np.concatenate(
        [batch["source"].numpy() for batch in yoga.DataLoader(mix, 1000, shuffle=True, seed=7)]
    )
    share = np.array(list(weights.values())) / sum(weights.values())
    drawn = np.random.default_rng(7).choice(len(weights), rows, p=share)
    figure, panels = plt.subplots(1, 2, figsize=(9, 2.8), sharey=True)
    for axes, source, title in zip(
        panels, (drawn, mixed), ("drawn at random for each row", "yoga.mix"), strict=True
    ):
        counts = np.cumsum(source[:, None] == np.arange(len(weights)), axis=0)
        off = counts - np.arange(1, rows + 1)[:, None] * share
        for number, name in enumerate(weights):
            axes.plot(
                np.arange(0, rows, 64), off[::64, number], color=COLOURS[number], linewidth=0.8, label=name
            )
        axes.set_title(f"{title}: up to {np.abs(off).max():.0f} rows off")
        axes.set_xlabel("rows so far")
        axes.set_xlim(0, rows)
        axes.set_xticks([0, rows // 2, rows])
    panels[0].set_ylabel("rows more than its share")
    panels[0].legend(loc="upper left", frameon=False)
    figure.savefig(IMAGES / "mixture.svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})


def packed_batch() -> None:
    """A batch of padded rows, and one of packs: what is a token, and what is padding."""
    lengths = np.clip(np.random.default_rng(3).lognormal(3, 0.9, 200), 1, 128).astype(int)
    rows = [{"ids": np.zeros(n, np.int32)} for n in lengths]
    with tempfile.TemporaryDirectory() as folder:
        schema = yoga.Schema.of(rows[0], ragged=["ids"])
        ref = yoga.Storage(folder).submit(rows, "texts", "1", schema=schema, progress=False)
        batch = next(iter(yoga.DataLoader(ref.packed("ids", 128), 6, shuffle=True, seed=7)))
        single = next(iter(yoga.DataLoader(ref, 6, shuffle=True, seed=7, collate_fn=yoga.padded())))
    figure, panels = plt.subplots(1, 2, figsize=(9, 2.2), sharex=True)
    begins, packs = batch["cu_seqlens"].tolist(), batch["packs"].tolist()
    for pack, (first, last) in enumerate(pairwise(packs)):
        for number in range(first, last):
            left = begins[number] - begins[first]
            colour = COLOURS[(number - first) % len(COLOURS)]
            panels[1].barh(pack, begins[number + 1] - begins[number], left=left, color=colour, height=0.8)
    for row, length in enumerate(single["ids"].lengths.tolist()):
        panels[0].barh(row, length, color=COLOURS[0], height=0.8)
        panels[0].barh(row, 128 - length, left=length, color="#e5e5e5", height=0.8)
    panels[0].set_title("six rows, padded to 128 tokens")
    panels[1].set_title(f"six packs of {len(batch['rows'])} rows")
    for axes in panels:
        axes.set_xlim(0, 128)
        axes.set_yticks([])
        axes.invert_yaxis()
        axes.set_xlabel("token")
    figure.savefig(IMAGES / "packed.svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})


def padding() -> None:
    """The share of padding of 100,000 texts, by what makes the batches."""
    rows, most = 100_000, 4096
    lengths = np.clip(np.random.default_rng(7).lognormal(6, 1, rows), 1, most).astype(np.int64)

    def of_batches(order: Any) -> float:
        groups = lengths[order][: rows // 64 * 64].reshape(-1, 64)
        return float(1 - groups.sum() / (64 * groups.max(axis=1)).sum())

    found = {
        "batches of 64 at random": of_batches(list(yoga.ResumableSampler(rows, shuffle=True, seed=7))),
        "each row alone, 4,096 tokens": 1 - lengths.sum() / (rows * most),
    }
    with tempfile.TemporaryDirectory() as folder:
        texts = ({"ids": np.zeros(length, np.uint8)} for length in lengths)
        schema = yoga.Schema.of({"ids": np.zeros(3, np.uint8)}, ragged=["ids"])
        ref = yoga.Storage(folder).submit(texts, "texts", "1", schema=schema, progress=False)
        for pool in (1024, 8192):
            bucketed = ref.bucketed("ids", pool=pool, batch=64)
            found[f"bucketed, pools of {pool:,}"] = of_batches(
                list(yoga.ResumableSampler(bucketed, shuffle=True, seed=7))
            )
        found["token_batches, 65,536 tokens"] = ref.token_batches("ids", 65_536).report().padding
        found["packed, 4,096 tokens"] = ref.packed("ids", most).report().padding
    names = sorted(found, key=lambda name: -found[name])
    figure, axes = plt.subplots(figsize=(7, 2.4))
    axes.barh(names, [100 * found[name] for name in names], color=COLOURS[0])
    for place, name in enumerate(names):
        axes.text(100 * found[name] + 1, place, f"{100 * found[name]:.2g} %", va="center")
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("padding, % of a batch")
    figure.savefig(IMAGES / "padding.svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})


def builds() -> None:
    """Twelve parts and three helpers, of which one dies at its third part; another one builds that again."""
    figure, axes = plt.subplots(figsize=(8, 2.6))
    axes.set_xlim(-2.2, 6)
    axes.set_ylim(-3.2, 1.3)
    missing, turn = list(range(12)), 0
    while missing:
        axes.text(turn + 0.46, 1.0, str(turn), ha="center", color="gray", size=8)
        for helper, part in zip(range(3 if turn < 3 else 2), [*missing], strict=False):
            dies = (helper, turn) == (2, 2)
            cell(axes, turn, -1.1 * helper, str(part), COLOURS[helper], hollow=dies)
            if dies:
                axes.text(turn + 1.1, -1.1 * helper + 0.38, "killed", va="center", color="black")
            else:
                missing.remove(part)
        turn += 1
    label(axes, 0.8, "turn")
    for helper in range(3):
        label(axes, -1.1 * helper, f"helper {helper + 1}")
    axes.text(0, -2.9, "12 parts, each noted once: 60 rows", ha="left", va="center", color="black")
    save(figure, axes, "builds.svg")


def versions() -> None:
    """The files of versions that were made from each other; each colour is a file."""
    with tempfile.TemporaryDirectory() as folder:
        storage = yoga.Storage(folder)
        made = [("1.0, by submit", storage.submit({"x": np.arange(60)}, "rows", "1.0"))]
        more = storage.append({"x": np.arange(60, 80)}, "rows", "1.1", after="1.0")
        made.append(("1.1, by append", more))
        more = storage.append({"x": np.arange(80, 110)}, "rows", "1.2", after="1.1")
        made.append(("1.2, by append", more))
        fewer = storage.delete_rows("rows", "1.2", rows=range(20, 35), to="1.3")
        made.append(("1.3, by delete_rows", fewer))
        made.append(("1.3, after convert", storage.convert("rows", "1.3")))
        found = [(name, ref.manifest.files) for name, ref in made]  # type: ignore[attr-defined]
    figure, axes = plt.subplots(figsize=(8, 2.4))
    known: dict[str, str] = {}
    for y, (name, files) in enumerate(found):
        start = 0
        for file in files:
            colour = known.setdefault(file.name, [*COLOURS, "#b279a2"][len(known)])
            whole = file.whole.rows
            axes.barh(-y, whole, left=start, color=colour, height=0.7, edgecolor="white")
            if file.deleted is not None:
                lost = file.deleted.rows
                left = start + int(lost[0])
                axes.barh(-y, len(lost), left=left, color="white", hatch="////", edgecolor=colour, height=0.7)
            start += whole
        axes.text(-2, -y, name, ha="right", va="center")
    axes.set_xlim(-40, 112)
    axes.axis("off")
    figure.savefig(IMAGES / "versions.svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})


def add_dark_colours() -> None:
    """Gives each picture of matplotlib, those of benchmarks/ too, other colours on dark pages."""
    rule = "@media(prefers-color-scheme:dark){svg{filter:invert(1) hue-rotate(180deg)}}"
    for path in IMAGES.glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        if "prefers-color-scheme" not in text:
            path.write_text(text.replace("</style>", f"{rule}</style>", 1), encoding="utf-8")


if __name__ == "__main__":
    mixture()
    packed_batch()
    padding()
    builds()
    versions()
    order()
    views()
    shuffle()
    resume()
    add_dark_colours()
