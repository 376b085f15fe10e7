"""Packed rows: every target once, none across documents, few places empty, any row at once."""

import time

import numpy as np
import pytest

from lm.config import DataConfig
from lm.data.build import build, dtypes, from_corpus
from lm.data.corpus import Corpus, Document
from lm.data.packing import Packed, _best_fit, plan
from lm.data.rows import RowSettings
from lm.data.split import Split
from lm.errors import BadInput

SIZES = [1, 5, 17, 3, 8, 2, 40, 16, 9, 12, 1, 6, 33, 4, 4, 4, 7, 2, 2, 25]


def split_of(sizes) -> Split:
    """Documents whose tokens are numbered through: token t is t."""
    ends = np.cumsum(sizes).astype(np.int64)
    return Split(np.arange(ends[-1] if len(ends) else 0), ends, None)


def packed(sizes, length: int, block: int = 1000) -> Packed:
    split = split_of(sizes)
    return Packed(split, plan(split, length, block), length)


@pytest.mark.parametrize("length,block", [(16, 1000), (16, 7), (8, 1), (64, 1000), (1, 5)])
def test_every_target_is_there_once_and_none_is_in_another_document(length, block):
    rows = packed(SIZES, length, block)
    b = rows.rows(np.arange(rows.plan.n_rows))
    valid = b.weights == 1
    ends = np.cumsum(SIZES)
    document = np.searchsorted(ends, np.arange(ends[-1]), "right")
    assert (b.targets[valid] == b.inputs[valid] + 1).all()
    assert (document[b.targets[valid]] == document[b.inputs[valid]]).all()
    firsts = np.concatenate([[0], ends[:-1]])
    assert sorted(b.targets[valid].tolist()) == sorted(set(range(ends[-1])) - set(firsts.tolist()))
    assert valid.sum() == rows.plan.n_targets
    assert rows.plan.padding(length) == pytest.approx(1 - valid.mean())
    # Places without a target say so everywhere.
    for array in (b.inputs, b.targets, b.segments, b.positions):
        assert (array[~valid] == 0).all()


def test_segments_and_positions_are_those_of_each_piece():
    rows = packed(SIZES, 16)
    b = rows.rows(np.arange(rows.plan.n_rows))
    for inputs, segments, positions, weights in zip(
        b.inputs, b.segments, b.positions, b.weights, strict=True
    ):
        n = int(weights.sum())
        assert (weights[:n] == 1).all()
        # A twin that walks: a new piece where the input does not follow the one before it.
        segment, position, expected = 0, 0, []
        for i in range(n):
            begins = i == 0 or inputs[i] != inputs[i - 1] + 1
            segment, position = (segment + 1, 0) if begins else (segment, position + 1)
            expected.append((segment, position))
        assert list(zip(segments[:n], positions[:n], strict=True)) == expected


def test_best_fit_equals_a_plain_search():
    rng = np.random.default_rng(0)
    for _ in range(20):
        sizes = rng.integers(0, 30, 60)
        got = _best_fit(sizes, 29)
        room: list[int] = []
        for size in sorted(sizes[sizes > 0].tolist(), reverse=True):
            fits = [r for r in room if r >= size]
            if fits:
                room.remove(min(fits))
            room.append((min(fits) if fits else 29) - size)
        assert sorted(29 - sizes[b].sum() for b in got) == sorted(room)
        assert sorted(i for b in got for i in b) == np.flatnonzero(sizes).tolist()


def test_a_block_is_planned_without_the_others():
    whole, first = packed(SIZES, 16, 10), packed(SIZES[:10], 16, 10)
    n = first.plan.n_rows
    for a, b in zip(whole.rows(np.arange(n)), first.rows(np.arange(n)), strict=True):
        assert (a == b).all()


def test_little_is_left_empty():
    sizes = np.random.default_rng(0).lognormal(4.5, 1, 20_000).astype(np.int64) + 2
    assert plan(split_of(sizes), 256, 4096).padding(256) < 0.005


def corpus(n: int) -> Corpus:
    rng = np.random.default_rng(1)
    text = lambda i: bytes(rng.integers(97, 123, 2 + int(rng.integers(60)), np.uint8))
    train, held_out = ([Document(f"{i}", text(i)) for i in range(k)] for k in (n, n // 4 + 1))
    return Corpus(train, held_out, "sha")


def test_a_packed_data_set(capsys):
    c = corpus(200)
    ds = from_corpus(c, "bytes", RowSettings(32, 3, "best_fit"))
    assert "200 documents in" in capsys.readouterr().err
    n = ds.n_train_sequences
    for epoch in (0, 1, 10**6):
        b = ds.batch(epoch * n, n)
        assert b.weights.sum() == sum(len(d.text) - 1 for d in c.train)
    # Hosts make their own rows of what one host would have made, over an epoch's end.
    whole = ds.batch(n - 3, 8)
    halves = [ds.batch(n - 3, 8, rows) for rows in (slice(0, 4), slice(4, 8))]
    for field, dtype in zip(whole._fields, dtypes("best_fit"), strict=True):
        assert getattr(whole, field).dtype == dtype
        assert (np.concatenate([getattr(h, field) for h in halves]) == getattr(whole, field)).all()
    held_out = list(ds.validation(8))
    assert {b.inputs.shape for b in held_out} == {(8, 32)}
    total = sum(len(d.text) - 1 for d in c.validation)
    assert sum(b.weights.sum() for b in held_out) == total
    assert ds.n_validation_tokens == ds.validation_bytes == total


def test_seeking_far_costs_what_seeking_near_does():
    sizes = np.random.default_rng(0).integers(2, 60, 20_000)
    split = Split(np.zeros(sizes.sum(), np.uint8), np.cumsum(sizes), None)
    ds = Packed(split, plan(split, 64, 4096), 64)
    from lm.data.shuffle import Shuffled

    rows = Shuffled(ds, ds.plan.n_rows, 0)

    def seconds(start):
        best = np.inf
        for _ in range(20):
            t = time.thread_time()
            rows.rows(np.arange(start, start + 16))
            best = min(best, time.thread_time() - t)
        return best

    seconds(10)
    assert seconds(10_000_000) < 5 * seconds(10)


def test_what_cannot_be_packed_is_refused():
    one = Corpus([Document("a", b"x")], [Document("b", b"yz")], "sha")
    with pytest.raises(BadInput, match="training split has 1 documents and none with two"):
        from_corpus(one, "bytes", RowSettings(8, 0, "best_fit"))
    with pytest.raises(BadInput, match="packing=best_fit with data.source=markov"):
        build(DataConfig(source="markov", packing="best_fit"), 8, 0)
