"""Windows, their order, and the data set around them: known sequences in, every target counted."""

import time

import numpy as np
import pytest

from lm.config import DataConfig
from lm.data import build as build_module
from lm.data.build import build, from_corpus
from lm.data.corpus import Corpus, Document
from lm.data.rows import RowSettings
from lm.data.shuffle import epoch_key, shuffled
from lm.data.windows import Windows
from lm.errors import BadInput


def corpus(n_train: int, n_validation: int, seed: int = 0) -> Corpus:
    """Random bytes below 128, which are valid UTF-8."""
    text = np.random.default_rng(seed).integers(0, 128, n_train + n_validation, np.uint8).tobytes()
    train, held_out = text[:n_train], text[n_train:]
    return Corpus([Document("a", train)], [Document("b", held_out)], "sha")


def numbered(n_sequences: int, length: int, seed: int = 0):
    """A data set whose window i holds the tokens i * length .. (i + 1) * length, as its bytes."""
    assert n_sequences * length < 128
    text = bytes(range(n_sequences * length + 1))
    parts = Corpus([Document("a", text)], [Document("b", text)], "sha")
    return from_corpus(parts, "bytes", RowSettings(length, seed))


def windows_of(batch, length: int) -> list[int]:
    """Which windows of `numbered` the rows are, each checked in full."""
    first = batch.inputs[:, 0]
    assert (batch.inputs == first[:, None] + np.arange(length)).all()
    assert (batch.targets == batch.inputs + 1).all()
    assert (batch.weights == 1).all()
    assert (first % length == 0).all()
    return (first // length).tolist()


def test_each_epoch_has_every_window_once_in_an_order_of_its_own():
    ds = numbered(10, 4)
    assert ds.n_train_sequences == 10
    # Batches of 4 over 10 windows: two of every five batches lie across an epoch boundary.
    seen = [w for step in range(20) for w in windows_of(ds.batch(4 * step, 4), 4)]
    epochs = [seen[i : i + 10] for i in range(0, 80, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 8
    assert list(range(10)) not in epochs


def test_two_consecutive_seeks_over_an_epoch_boundary_give_the_uninterrupted_order():
    whole = [windows_of(numbered(10, 4).batch(4 * step, 4), 4) for step in range(9)]
    position, parts = 0, []
    for steps in (2, 4, 3):  # a new data set each time, as after a restart
        resumed = numbered(10, 4)
        for _ in range(steps):
            parts.append(windows_of(resumed.batch(position, 4), 4))
            position += 4
    assert parts == whole


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_make_disjoint_rows_of_the_same_batch(hosts):
    ds = from_corpus(corpus(3000, 500), "bytes", RowSettings(16, 5))
    assert ds.n_train_sequences == 187
    for start in (0, 187 - 3, 10**12):
        whole = ds.batch(start, 8)
        share = 8 // hosts
        parts = [ds.batch(start, 8, slice(h * share, (h + 1) * share)) for h in range(hosts)]
        for i in range(3):
            assert (np.concatenate([p[i] for p in parts]) == whole[i]).all()
        apart = np.array([0, 1, 4, 5])  # of a host whose devices are no neighbours
        assert (ds.batch(start, 8, apart).targets == whole.targets[apart]).all()


def test_batch_shapes_and_types():
    b = from_corpus(corpus(3000, 500), "bytes", RowSettings(16, 5)).batch(7, 3)
    assert [x.shape for x in b[:3]] == [(3, 16)] * 3
    assert [x.dtype for x in b[:3]] == [np.int32, np.int32, np.float32]
    assert b.segments is None and b.positions is None


def test_order_depends_on_seed_and_epoch_not_on_their_sum():
    n = np.arange(1000)
    orders = {(s, e): shuffled(n + 1000 * e, 1000, s) for s in range(3) for e in range(3)}
    assert all(sorted(order) == list(range(1000)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 9
    # grain's own rule would make these two equal.
    assert (orders[0, 1] != orders[1, 0]).mean() > 0.9


def test_order_is_grains_shuffle():
    import grain

    expected = grain.MapDataset.range(37).shuffle(seed=epoch_key(3, 2))
    got = shuffled(np.arange(37) + 2 * 37, 37, 3)
    assert got.tolist() == [expected[i] for i in range(37)]


def test_order_is_the_same_as_when_it_was_written():
    # A tripwire: resumed runs rely on it. Changing it on purpose makes old checkpoints resume
    # with another order.
    assert shuffled(np.arange(10), 10, 0).tolist() == [9, 8, 3, 4, 2, 0, 5, 7, 6, 1]


def test_seeking_far_costs_what_seeking_near_does():
    ds = from_corpus(corpus(30_000, 500), "bytes", RowSettings(16, 5))

    def seconds(start):
        best = np.inf
        for _ in range(20):
            t = time.perf_counter()
            ds.batch(start, 16)
            best = min(best, time.perf_counter() - t)
        return best

    seconds(10)
    assert seconds(10_000_000) < 5 * seconds(10)


@pytest.mark.parametrize(
    "n,length,batch_size", [(500, 16, 8), (17, 16, 4), (33, 16, 1), (129, 8, 4)]
)
def test_validation_has_every_target_once_in_equal_shapes(n, length, batch_size):
    parts = corpus(200, n)
    ds = from_corpus(parts, "bytes", RowSettings(length, 0))
    text = np.frombuffer(parts.validation[0].text, np.uint8)
    batches = list(ds.validation(batch_size))
    assert len(batches) == len(ds.validation(batch_size))
    assert {x.shape for b in batches for x in b[:3]} == {(batch_size, length)}
    inputs = np.concatenate([b.inputs.ravel() for b in batches])
    targets = np.concatenate([b.targets.ravel() for b in batches])
    weights = np.concatenate([b.weights.ravel() for b in batches])
    assert set(weights.tolist()) <= {0.0, 1.0}
    assert (inputs[weights == 1] == text[:-1]).all()
    assert (targets[weights == 1] == text[1:]).all()
    assert weights.sum() == ds.n_validation_tokens == ds.validation_bytes == n - 1
    assert targets.max() < ds.vocab_size
    # The same targets in the same order, however they are batched and shared among hosts.
    assert ds.validation(batch_size)[-1].weights.tolist() == batches[-1].weights.tolist()
    halves = [ds.validation(4, np.array([0, 2])), ds.validation(4, np.array([1, 3]))]
    assert len(halves[0]) == len(halves[1])
    assert sum(b.weights.sum() for half in halves for b in half) == n - 1


def test_validation_is_read_again_from_the_start():
    held_out = from_corpus(corpus(200, 100), "bytes", RowSettings(16, 0)).validation(2)
    first = [b.targets.tolist() for b in held_out]
    assert [b.targets.tolist() for b in held_out] == first
    with pytest.raises(IndexError):
        held_out[len(held_out)]


def test_windows_share_only_the_boundary_token():
    tokens = np.arange(101, dtype=np.uint8)
    b = Windows(tokens, 25).rows(np.arange(4))
    assert b.targets.ravel().tolist() == list(range(1, 101))
    assert b.inputs.ravel().tolist() == list(range(100))


@pytest.mark.parametrize(
    "n_train,n_validation,split,n", [(16, 100, "training", 16), (100, 16, "validation", 16)]
)
def test_a_split_shorter_than_the_context_is_a_plain_error(n_train, n_validation, split, n):
    with pytest.raises(BadInput) as e:
        from_corpus(corpus(n_train, n_validation), "bytes", RowSettings(16, 0))
    assert split in str(e.value) and str(n) in str(e.value) and "17" in str(e.value)


def test_a_split_of_exactly_one_window_is_enough():
    ds = from_corpus(corpus(17, 17), "bytes", RowSettings(16, 0))
    assert ds.n_train_sequences == 1
    assert ds.batch(5, 3).targets.shape == (3, 16)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(BadInput, match="python_library"):
        build(DataConfig(source="python_libary"), 16, 0)
    with pytest.raises(BadInput, match="did you mean 'bytes'"):
        build_module.from_corpus(corpus(100, 100), "byte", RowSettings(16, 0))


@pytest.mark.parametrize("n,windows", [(64, 3), (65, 4), (80, 4), (81, 5)])
def test_training_rows_are_full_whatever_the_length_of_the_text(n, windows):
    ds = from_corpus(corpus(n, 100), "bytes", RowSettings(16, 0))
    assert ds.n_train_sequences == windows
    epoch = ds.batch(0, windows)
    assert epoch.weights.min() == 1
    text = np.frombuffer(corpus(n, 100).train[0].text, np.uint8)
    assert sorted(epoch.inputs[:, 0].tolist()) == sorted(text[: windows * 16 : 16].tolist())


def test_seed_changes_the_order():
    orders = [windows_of(numbered(20, 4, seed).batch(0, 20), 4) for seed in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
