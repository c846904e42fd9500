"""Packs and windows in what trains on them: each document comes out as it does alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from packs import tokens_of

import torchyoga as yoga

LENGTHS = [5, 9, 1, 16, 3, 7, 2, 11, 4, 6, 13, 8]
VOCABULARY = sum(LENGTHS)


def whole(batch: Any) -> Any:
    """A batch as one line of tokens."""
    by_token = ("ids", "labels", "position_ids")
    return {**batch, **{name: batch[name].reshape(-1) for name in by_token}}


def documents(batch: Any) -> list[slice]:
    return [slice(a, b) for a, b in itertools.pairwise(batch["cu_seqlens"].tolist())]


def block_mask(batch: Any) -> torch.Tensor:
    """(T, T) true where a token may look, from the layout that flash_attention_2 takes."""
    ends = batch["cu_seqlens"].long()
    of = torch.repeat_interleave(torch.arange(len(ends) - 1), ends.diff())
    return (of[:, None] == of) & torch.ones(len(of), len(of)).tril().bool()


def batches(kind: str) -> list[Any]:
    """Two batches of each kind, with the documents that they have."""
    ref = tokens_of(LENGTHS)
    options: dict[str, Any] = {"labels": "same", "documents": True}
    made = {
        "packs": lambda: ref.packed("ids", 24, **options),
        "shifted packs": lambda: ref.packed("ids", 24, **{**options, "labels": "shifted"}),
        "filled packs": lambda: ref.packed("ids", 24, padded=0, **options),
        "windows": lambda: ref.token_windows("ids", 10, dtype="int64", **options),
        "shifted windows": lambda: ref.token_windows("ids", 10, **{**options, "labels": "shifted"}),
    }[kind]()
    return list(itertools.islice(yoga.DataLoader(made, 2, shuffle=True, seed=7), 2))


KINDS = ["packs", "filled packs", "windows", "shifted windows"]


@pytest.mark.parametrize("kind", [*KINDS, "shifted packs"])
def test_all_of_them_say_the_same_by_the_same_names(kind: str) -> None:
    ref = tokens_of(LENGTHS)
    for batch in batches(kind):
        flat = whole(batch)
        some, filled = documents(batch), kind == "filled packs"
        assert flat["position_ids"].shape == flat["ids"].shape == (some[-1].stop,)
        assert batch["max_seqlen"] == max(one.stop - one.start for one in some)
        assert batch["cu_seqlens"].dtype == torch.int32
        ids = batch["document_ids"].reshape(-1).tolist()
        begins = batch["begins"].tolist() if "begins" in batch else [0] * len(batch["rows"])
        real = [one for one in some if not (filled and ids[one.start] < 0)]
        assert len(real) == len(batch["rows"]) == batch["packs"][-1]
        for one, row, begin in zip(real, batch["rows"].tolist(), begins, strict=True):
            own = ref[row]["ids"].tolist()
            end = begin + one.stop - one.start
            assert flat["ids"][one].tolist() == own[begin:end]
            assert flat["position_ids"][one].tolist() == list(range(one.stop - one.start))
            labels = own[begin + 1 : end + 1] if kind.startswith("shifted") else [-100, *own[begin + 1 : end]]
            labels += [-100] * (one.stop - one.start - len(labels))
            assert flat["labels"][one].tolist() == labels
            assert len(set(ids[one])) == 1
        # Tokens of one document, and no others, have one number: in a batch that is flat, or in a row.
        width = len(ids) if kind in ("packs", "shifted packs") else len(ids) // 2
        mask = block_mask(batch)
        for start in range(0, len(ids), width):
            own = torch.tensor(ids[start : start + width])
            within = slice(start, start + width)
            assert torch.equal((own[:, None] == own).tril(), mask[within, within])


def _varlen(module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
    """Attention by what flash_attention_2 takes: documents by where they begin, and the longest."""
    ends = more["cu_seq_lens_q"].tolist()
    assert ends == more["cu_seq_lens_k"].tolist()
    assert mask is None
    found = []
    for a, b in itertools.pairwise(ends):
        assert b - a <= more["max_length_q"]
        own = (x[:, :, a:b] for x in (query, key, value))
        found.append(torch.nn.functional.scaled_dot_product_attention(*own, is_causal=True))
    return torch.cat(found, 2).transpose(1, 2).contiguous(), None


def _llama() -> Any:
    pytest.importorskip("transformers")
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register("varlen", _varlen)
    AttentionMaskInterface.register("varlen", lambda *args, **more: None)

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).double().eval()


@pytest.mark.rest
@pytest.mark.filterwarnings("default")  # of what transformers imports
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_transformers_sees_each_document_alone(kind: str) -> None:
    model = _llama()
    for batch in batches(kind):
        flat = whole(batch)
        ends = batch["cu_seqlens"]
        layout = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
        layout |= {name: batch["max_seqlen"] for name in ("max_length_q", "max_length_k")}
        tokens = {"input_ids": flat["ids"].long()[None], "position_ids": flat["position_ids"][None]}
        with torch.no_grad():
            masked = model(**tokens, attention_mask=block_mask(batch)[None, None]).logits[0]
            # With sdpa the model makes its mask of the positions; flash_attention_2 takes the layout.
            told = model(**tokens, use_cache=False).logits[0]
            model.set_attn_implementation("varlen")
            cut = model(**tokens, **layout, use_cache=False).logits[0]
            model.set_attn_implementation("sdpa")
            alone = [model(input_ids=tokens["input_ids"][:, one]).logits[0] for one in documents(batch)]
        assert torch.allclose(masked, torch.cat(alone), rtol=0, atol=1e-12)
        assert torch.allclose(told, torch.cat(alone), rtol=0, atol=1e-12)
        assert torch.allclose(cut, torch.cat(alone), rtol=0, atol=1e-12)
        if kind != "packs":  # and as rows of one width
            rows = {"input_ids": batch["ids"].long(), "position_ids": batch["position_ids"]}
            size = batch["ids"].shape[1]
            blocks = [block_mask(batch)[a : a + size, a : a + size] for a in range(0, len(masked), size)]
            with torch.no_grad():
                scores = model(**rows, attention_mask=torch.stack(blocks)[:, None]).logits
            assert torch.allclose(scores.flatten(0, 1), torch.cat(alone), rtol=0, atol=1e-12)


@pytest.mark.rest
@pytest.mark.filterwarnings("default")
def test_collators_of_transformers_and_trl_make_the_same_tensors() -> None:
    """TRL's, with padding_free=True, makes what transformers' does, as of 1.16; seq_idx too."""
    pytest.importorskip("transformers")
    from transformers import DataCollatorWithFlattening

    ref = tokens_of(LENGTHS)
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    packed = ref.packed("ids", 24, documents=True, layout="transformers")
    for batch, own in zip(batches("packs"), yoga.DataLoader(packed, 2, shuffle=True, seed=7), strict=False):
        made = collate([{"input_ids": ref[row]["ids"].tolist()} for row in batch["rows"].tolist()])
        for end in "qk":  # of two dimensions in some versions
            made[f"cu_seq_lens_{end}"] = made[f"cu_seq_lens_{end}"].flatten()
        assert made.keys() == own.keys()
        for name, values in made.items():
            assert torch.equal(torch.as_tensor(own[name]), torch.as_tensor(values)), name
        # TRL's way to them, from positions.
        starts = (batch["position_ids"] == 0).nonzero().flatten()
        assert batch["cu_seqlens"].tolist() == [*starts.tolist(), len(batch["ids"])]
        assert torch.equal(batch["labels"] == -100, batch["position_ids"] == 0)


@pytest.mark.parametrize("padded", [None, 7])
def test_packs_are_laid_out_for_models_of_transformers(padded: Any) -> None:
    """Of columns the tokens and their labels alone, (1, tokens) or (packs, budget), all of int64."""
    whole = tokens_of(LENGTHS).map_batches(
        lambda c: {
            **c,
            "text": ["a"] * len(c["ids"]),
            "own": yoga.RaggedColumn(-c["ids"].values, c["ids"].lengths),
        }
    )
    source = whole.map_batches(lambda c: {"ids": c["ids"], "labels": c["own"], "text": c["text"]})
    for ref, labels in ((whole, "same"), (source, "labels")):
        options = {"documents": True, "padded": padded}
        plain = ref.packed("ids", 24, labels=labels, **options)
        made = ref.packed("ids", 24, layout="transformers", **options)
        assert len(plain) == len(made)
        for before, batch in zip(
            *(yoga.DataLoader(p, 2, shuffle=True, seed=7) for p in (plain, made)), strict=True
        ):
            ends, longest = before["cu_seqlens"], before["max_seqlen"]
            for end in "qk":
                assert torch.equal(batch.pop(f"cu_seq_lens_{end}"), ends)
                assert batch.pop(f"max_length_{end}") == longest
            names = {"input_ids": "ids", "labels": "labels", "position_ids": "position_ids"}
            assert batch.keys() == {*names, "seq_idx"}
            for name, other in {**names, "seq_idx": "document_ids"}.items():
                values = before[other] if padded else before[other][None]
                assert torch.equal(batch[name], values.to(batch[name].dtype)), name
                assert batch[name].dtype == (torch.int32 if name == "seq_idx" else torch.int64)
        few = next(iter(yoga.DataLoader(ref.packed("ids", 24, layout="transformers", padded=padded), 2)))
        assert few.keys() == names.keys()
    parts = yoga.mix({"a": whole, "b": whole}, rows=12).packed("ids", 24, layout="transformers")
    assert next(iter(yoga.DataLoader(parts, 2)))["input_ids"].shape[0] == 1
    for wrong, text in {
        "labels": ({"labels": "shifted"}, "shift labels themselves"),
        "layout": ({"layout": "trl"}, 'layout must be "transformers"'),
        "padded": ({"padded": {"ids": 0}}, "names no column"),
    }.values():
        with pytest.raises((ValueError, KeyError), match=text):
            whole.packed("ids", 24, **{"layout": "transformers", **wrong})
