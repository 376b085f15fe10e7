"""Duplicates: signatures estimate the similarity of texts, and the report counts what repeats."""

import json
import re

import numpy as np
import pytest

from lm.data import duplicates, token_folder, tokenizing
from lm.data.duplicates import EMPTY, report, signature, similarity
from lm.data.inputs import Files, text_digest
from lm.data.tokenizer import Bytes

VOCABULARY = [f"w{i}" for i in range(500)]


def text(seed: int, n: int = 200) -> list[str]:
    return np.random.default_rng(seed).choice(VOCABULARY, n).tolist()


def jaccard(a: str, b: str) -> float:
    """The definition: shingles of five words as sets."""
    sets = []
    for t in (a, b):
        words = re.findall(r"\w+", t.lower())
        sets.append({tuple(words[i : i + 5]) for i in range(len(words) - 4)})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def edited(words: list[str], n: int) -> str:
    out = list(words)
    for i in range(n):
        out[(i * 37 + 3) % len(out)] = f"changed{i}"
    return " ".join(out)


def test_signatures_estimate_the_jaccard_index():
    errors = []
    for seed in range(20):
        words = text(seed)
        for n in (0, 1, 4, 10, 30):
            a, b = " ".join(words), edited(words, n)
            estimate = float(similarity(signature(a), signature(b)))
            sigma = max((jaccard(a, b) * (1 - jaccard(a, b)) / 128) ** 0.5, 1e-9)
            errors.append((estimate - jaccard(a, b)) / sigma if n else estimate - 1)
    assert abs(np.mean(errors)) < 0.4 and np.abs(errors).max() < 4.5  # unbiased, binomial
    assert similarity(signature(" ".join(text(1))), signature(" ".join(text(2)))) < 0.1


def test_case_punctuation_and_parts_do_not_matter():
    words = text(0)
    plain = signature(" ".join(words))
    assert (signature(", ".join(words).upper() + "!") == plain).all()
    parts = np.minimum(signature(" ".join(words[:100])), signature(" ".join(words[100:])))
    assert similarity(parts, plain) > 0.9
    assert (signature("") == EMPTY).all() and (signature("two words") != EMPTY).any()


def test_report_counts_what_repeats(monkeypatch):
    monkeypatch.setattr(duplicates, "CHUNK", 64)
    a, b = text(100), text(101)
    documents = [" ".join(text(i)) for i in range(30)]
    documents += [" ".join(a), " ".join(a), edited(a, 2), edited(a, 3)]  # equal; near
    documents += [" ".join(b), edited(b, 2)]
    documents += ["", "", "!"]  # two equal; no words, so near nothing
    held_out = np.zeros(len(documents), bool)
    held_out[[5, 33, 35]] = True
    digests = np.array([int.from_bytes(text_digest(d.encode()), "little") for d in documents])
    digests = digests.astype(np.uint64)
    signatures = np.stack([signature(d) for d in documents])
    found = report(digests, held_out, signatures)
    assert found == {
        "documents": 39,
        "exact": 2,
        "near": 3,
        "near_across_splits": 2,
        "largest": [4, 2, 2],
    }
    assert report(digests, held_out, None) == {"documents": 39, "exact": 2}
    none = np.zeros(0)
    assert report(none.astype(np.uint64), none.astype(bool), None)["exact"] == 0


@pytest.mark.parametrize("near", [False, True])
def test_the_files_bring_the_report(tmp_path, near, monkeypatch):
    monkeypatch.setattr(tokenizing, "BLOCK", 3000)
    words = text(70)
    texts = [" ".join(text(i)) for i in range(20)] + [" ".join(words)] * 2 + [edited(words, 2)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts))
    folder, files = tmp_path / "out", Files([tmp_path / "a.jsonl"])
    index = token_folder.new(folder, Bytes(), {})
    settings = tokenizing.Settings(0.3, 4000, 1, near)
    tokenizing.tokenize(folder, index, files, Bytes(), settings)
    found = token_folder.read_index(folder).duplicates
    assert (found["documents"], found["exact"]) == (23, 1)
    assert found.get("near") == (1 if near else None)
