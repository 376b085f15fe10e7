"""Mixtures: each source as often as its weight says, in its own epochs, from any number on."""

import json

import numpy as np
import pytest

from lm.config import DataConfig
from lm.data.build import build
from lm.data.mixture import BLOCK, Mixed, _counts, check
from lm.errors import BadInput


class Numbered:
    """A source whose rows say which it is and their number."""

    def __init__(self, name: int):
        self.name = name

    def rows(self, numbers):
        from lm.data.dataset import Batch

        inputs = np.full((len(numbers), 3), self.name, np.int32)
        targets = np.repeat(numbers[:, None], 3, 1).astype(np.int32)
        return Batch(inputs, targets, np.ones((len(numbers), 3), np.float32))


def test_each_block_has_each_source_as_often_as_its_weight_says():
    counts = _counts({"a": 7, "b": 2, "c": 1})
    mixed = Mixed([Numbered(i) for i in range(3)], counts, 0)
    b = mixed.rows(np.arange(3 * BLOCK))
    source = b.inputs[:, 0].reshape(3, BLOCK)
    assert [np.bincount(s).tolist() for s in source] == [[700, 200, 100]] * 3
    assert (source[0] != source[1]).any()
    # Each source goes through its own sequences, in order of blocks, without a gap.
    for i, n in enumerate(counts):
        own = b.targets[:, 0][b.inputs[:, 0] == i].reshape(3, n)
        assert [sorted(block) for block in own.tolist()] == [
            list(range(k * n, (k + 1) * n)) for k in range(3)
        ]
    # Any part of it alone, and far away.
    for start in (BLOCK - 3, 10**7):
        whole = mixed.rows(np.arange(start, start + 8))
        part = mixed.rows(np.arange(start + 2, start + 5))
        assert (whole.inputs[2:5] == part.inputs).all()
        assert (whole.targets[2:5] == part.targets).all()


def test_a_short_stretch_is_mixed_too():
    counts = _counts({"a": 1, "b": 1})
    source = Mixed([Numbered(0), Numbered(1)], counts, 3).rows(np.arange(400)).inputs[:, 0]
    assert all(5 <= s.sum() <= 35 for s in source.reshape(10, 40))


def test_counts_are_the_weights_to_the_nearest_sequence():
    rng = np.random.default_rng(0)
    for n in (2, 3, 7):
        weights = {str(i): float(w) for i, w in enumerate(rng.uniform(0.1, 1, n))}
        counts = _counts(weights)
        exact = np.array(list(weights.values())) / sum(weights.values()) * BLOCK
        assert counts.sum() == BLOCK and (np.abs(counts - exact) < 1).all()
    with pytest.raises(BadInput, match="weight of small is less"):
        _counts({"large": 1.0, "small": 1e-5})


def write(path, words: str, n: int = 60):
    lines = [json.dumps({"text": f"{words} number {i} {words * (i % 5)}"}) for i in range(n)]
    path.write_text("\n".join(lines))


@pytest.mark.parametrize("packing", ["concatenate", "best_fit"])
def test_a_mixture_of_files(tmp_path, packing):
    write(tmp_path / "code.jsonl", "def")
    write(tmp_path / "prose.jsonl", "words")
    pairs = ((str(tmp_path / "code.jsonl"), 3), (str(tmp_path / "prose.jsonl"), 1))
    settings = DataConfig(source="mixture", mixture=pairs, packing=packing)
    ds = build(settings, 16, 0)
    assert list(ds.parts) == ["code.jsonl", "prose.jsonl"]
    b = ds.batch(0, BLOCK)
    ds.batch(10**7, 4)
    code = ds.parts["code.jsonl"]
    rows = {r.tobytes() for r in code.batch(0, code.n_train_sequences).targets}
    assert sum(t.tobytes() in rows for t in b.targets) == 750
    # Validation: every target of each once, whether read apart or together.
    together = list(ds.validation(8))
    assert {x.inputs.shape for x in together} == {(8, 16)}
    n = sum(p.n_validation_tokens for p in ds.parts.values())
    assert sum(x.weights.sum() for x in together) == ds.n_validation_tokens == n
    assert ds.validation_bytes == sum(p.validation_bytes for p in ds.parts.values())
    assert (
        ds.sha256
        != build(DataConfig(source="mixture", mixture=pairs[::-1], packing=packing), 16, 0).sha256
    )


def test_mixtures_that_cannot_be_meant_are_refused(tmp_path):
    for mixture, words in [
        ((), "two or more"),
        ((("a", 1),), "two or more"),
        ((("a", 1), ("a", 2)), "two or more"),
        ((("a", 1), ("b", 0)), "greater than 0"),
        ((("a", 1), "b"), "each entry is a pair"),
    ]:
        with pytest.raises(BadInput, match=words):
            check(mixture)
    write(tmp_path / "a.jsonl", "def")
    write(tmp_path / "b.jsonl", "WORDS")
    pairs = ((str(tmp_path / "a.jsonl"), 1), (str(tmp_path / "b.jsonl"), 1))
    with pytest.raises(BadInput, match="other tokenizers"):
        build(DataConfig(source="mixture", mixture=pairs, tokenizer="characters"), 16, 0)
