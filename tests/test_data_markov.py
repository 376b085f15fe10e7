"""The source of known entropy: closed forms against an eigenvector and against sampled text."""

import numpy as np
import pytest

from lm.config import DataConfig
from lm.data import markov
from lm.data.build import build
from lm.errors import BadInput

CASES = [(32, 1, 0), (64, 1, 3), (32, 2, 1)]


def settings(**changes) -> DataConfig:
    return DataConfig(source="markov", **changes)


@pytest.fixture(scope="module", params=CASES, ids=str)
def chain(request):
    return markov.make_chain(*request.param)


def sampled(chain: markov.Chain, n_sequences: int, length: int) -> np.ndarray:
    """Whole sequences, [n_sequences, length + 1]."""
    b = markov.Sequences(chain, "test", length).rows(np.arange(n_sequences))
    assert (b.inputs[:, 1:] == b.targets[:, :-1]).all()
    return np.concatenate([b.inputs, b.targets[:, -1:]], axis=1)


def states(tokens: np.ndarray, chain: markov.Chain) -> np.ndarray:
    """The state before each token that has a whole one."""
    k, v = chain.order, chain.n_symbols
    n = tokens.shape[1] - k
    return sum(tokens[:, i : i + n].astype(np.int64) * v ** (k - 1 - i) for i in range(k))


def test_table_is_a_distribution_without_zeros(chain):
    assert (chain.counts_SV.sum(1) == markov.LEVELS).all()
    assert (chain.counts_SV > 0).all()
    assert chain.counts_SV.shape == (chain.n_symbols**chain.order, chain.n_symbols)
    # The draws agree with it.
    v = chain.n_symbols
    for s in (0, len(chain.counts_SV) - 1):
        draws = chain.symbol_of_draw[s * markov.LEVELS : (s + 1) * markov.LEVELS]
        assert (np.bincount(draws, minlength=v) == chain.counts_SV[s]).all()


def test_entropies_equal_an_independent_computation(chain):
    """The stationary vector by solving its linear equations on the full state graph."""
    v, k = chain.n_symbols, chain.order
    n = v**k
    step = np.zeros((n, n))
    for s in range(n):
        for x in range(v):
            step[s, (s * v + x) % n] += chain.counts_SV[s, x] / markov.LEVELS
    system = np.vstack([(step.T - np.eye(n))[:-1], np.ones(n)])
    pi = np.linalg.solve(system, np.eye(n)[-1])
    rate = 0.0
    unigram = np.zeros(v)
    for s in range(n):
        p = chain.counts_SV[s] / markov.LEVELS
        rate -= pi[s] * float(p @ np.log(p))
        unigram[s % v] += pi[s]
    assert chain.stationary_S == pytest.approx(pi, abs=1e-14)
    assert chain.entropy_rate == pytest.approx(rate, rel=1e-12)
    assert chain.unigram_entropy == pytest.approx(-float(unigram @ np.log(unigram)), rel=1e-12)


def test_entropy_rate_is_the_loss_of_the_true_probabilities_on_sampled_text(chain):
    length = 100
    tokens = sampled(chain, 4000, length)
    p = chain.counts_SV[states(tokens, chain), tokens[:, chain.order :]] / markov.LEVELS
    per_sequence = -np.log(p).mean(axis=1)  # independent of each other, tokens are not
    error = per_sequence.std(ddof=1) / np.sqrt(len(per_sequence))
    assert abs(per_sequence.mean() - chain.entropy_rate) < 3 * error
    assert error < 0.01 * chain.entropy_rate  # or the line above would say nothing


def test_sequences_are_stationary_from_their_first_token(chain):
    tokens = sampled(chain, 20_000, 8)
    unigram = chain.stationary_S.reshape(-1, chain.n_symbols).sum(0)
    for column in (0, 8):
        share = np.bincount(tokens[:, column], minlength=chain.n_symbols) / len(tokens)
        sigma = np.sqrt(unigram * (1 - unigram) / len(tokens))
        assert (abs(share - unigram) < 5 * sigma).all()


def test_entropy_rate_is_at_most_half_of_what_no_context_reaches():
    for v, order in ((32, 1), (64, 1), (200, 1), (32, 2)):
        for seed in range(30):
            c = markov.make_chain(v, order, seed)
            assert 0.1 < c.entropy_rate <= 0.5 * c.unigram_entropy <= 0.5 * np.log(v)


def test_order_two_needs_both_symbols():
    c = markov.make_chain(32, 2, 0)
    # Averaged over the older symbol, the text is much harder to predict.
    pair = (c.stationary_S[:, None] * c.counts_SV / markov.LEVELS).reshape(32, 32, 32).sum(0)
    first_order = -(pair * np.log(pair / pair.sum(1, keepdims=True))).sum()
    assert first_order > 2 * c.entropy_rate


def test_a_row_follows_from_its_number_alone():
    ds = build(settings(), 16, 0)
    far = 10**12 + markov.CHUNK - 3  # three rows before a chunk ends
    whole = ds.batch(far, 8)
    parts = [ds.batch(far + i, 1) for i in (5, 0, 7, 2, 1, 3, 6, 4)]
    again = build(settings(), 16, 0).batch(far, 8, slice(2, 5))
    assert [p.targets[0].tolist() for p in parts] == whole.targets[
        [5, 0, 7, 2, 1, 3, 6, 4]
    ].tolist()
    assert (again.inputs == whole.inputs[2:5]).all() and (again.targets == whole.targets[2:5]).all()
    assert len({tuple(row) for row in whole.inputs.tolist()}) == 8
    assert whole.weights.min() == 1


def test_no_two_sequences_share_a_draw():
    """Neighbouring sequences, chunks and the two splits look independent: no common stretch."""
    ds = build(settings(markov_validation_tokens=600 * 40), 40, 0)
    rows = ds.batch(0, 600).inputs[:, :20].tolist()
    rows += [row[:20] for b in ds.validation(100) for row in b.inputs.tolist()]
    assert len({tuple(row) for row in rows}) == len(rows) == 1200


@pytest.mark.parametrize("order,per_row", [(1, 16), (2, 15)])
def test_validation_has_enough_targets_and_each_sees_a_whole_state(order, per_row):
    ds = build(
        settings(markov_symbols=32, markov_order=order, markov_validation_tokens=1000), 16, 0
    )
    batches = list(ds.validation(16))
    weights = np.concatenate([b.weights for b in batches])
    assert {b.weights.shape for b in batches} == {(16, 16)}
    assert weights.sum() == ds.n_validation_tokens >= 1000
    n = ds.n_validation_sequences
    assert (weights[:n].sum(1) == per_row).all() and (weights[n:] == 0).all()
    assert (weights[:n, : order - 1] == 0).all()


def test_default_validation_has_a_million_targets():
    ds = build(settings(), 128, 0)
    assert ds.n_validation_tokens >= 1_048_576
    assert ds.validation_bytes is None and ds.n_train_tokens is None
    assert ds.entropy_rate == markov.make_chain(64, 1, 0).entropy_rate


def test_seed_changes_table_and_text():
    one, other = build(settings(), 16, 0), build(settings(), 16, 1)
    assert one.sha256 != other.sha256
    assert one.sha256 == build(settings(), 16, 0).sha256
    assert (one.batch(0, 4).inputs != other.batch(0, 4).inputs).any()


def test_table_and_text_are_the_same_as_when_they_were_written():
    # A tripwire: all draws are integers, so other machines and versions must agree.
    ds = build(settings(markov_symbols=32), 8, 0)
    assert ds.sha256.startswith("1b869be4e9d43193")
    assert ds.batch(0, 1).targets[0].tolist() == [25, 17, 25, 11, 5, 28, 5, 26]


def test_decodes_to_numbers_and_back():
    ds = build(settings(), 16, 0)
    ids = ds.batch(0, 1).inputs[0]
    assert ds.tokenizer.encode(ds.tokenizer.decode(ids)).tolist() == ids.tolist()
    with pytest.raises(BadInput, match="64"):
        ds.tokenizer.encode(b"1 64")
    with pytest.raises(BadInput, match="numbers"):
        ds.tokenizer.encode(b"a word")


@pytest.mark.parametrize(
    "changes,length,words",
    [
        ({"markov_symbols": 31}, 16, ("31", "32")),
        ({"markov_symbols": 5000}, 16, ("5000", "1024")),
        ({"markov_order": 0}, 16, ("0", "at least 1")),
        ({"markov_symbols": 64, "markov_order": 4}, 16, ("64", "4", "states")),
        ({"markov_symbols": 32, "markov_order": 2}, 1, ("1", "2")),
        ({"markov_validation_tokens": 0}, 16, ("markov_validation_tokens is 0",)),
    ],
)
def test_what_cannot_be_made_is_refused(changes, length, words):
    with pytest.raises(BadInput) as e:
        build(settings(**changes), length, 0)
    assert all(word in str(e.value) for word in words)


def test_a_chain_that_is_too_random_is_refused(monkeypatch):
    monkeypatch.setattr(
        markov, "_transitions", lambda v, order, seed: np.full((v, v), markov.LEVELS // v)
    )
    with pytest.raises(BadInput, match="half"):
        markov.make_chain(32, 1, 0)
