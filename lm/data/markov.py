"""Text without end whose least possible loss is known: a Markov chain of random transitions.

The next symbol depends on the last `order` symbols. Each of these states prefers a few successors
and allows every other, so that no probability is zero. Probabilities are whole numbers of
1/4096 and every draw is an integer, so a sequence is the same on any machine.

No model can have a lower expected loss than the entropy rate, in nats per token

    H = - sum_s pi(s) sum_x P(x | s) ln P(x | s)

with pi the stationary distribution over states (Cover and Thomas, Elements of Information
Theory, section 4.2). A model that knows no context reaches the unigram entropy; one that knows
nothing, ln V. H is at most half of either, so a loss near H is not reached by accident.
"""

import functools
import hashlib
from dataclasses import dataclass

import numpy as np

from lm.data.dataset import Batch, Rows
from lm.data.token_ids import token_dtype
from lm.errors import BadInput

LEVELS = 4096  # probabilities are whole numbers of 1 / LEVELS
PREFERRED = 4  # successors of a state that share what the floor of 1 / LEVELS leaves
MIN_SYMBOLS, MAX_SYMBOLS = 32, LEVELS // 4
MAX_TABLE = 2**27  # entries of the table of draws: one byte or two each
CHUNK = 256  # sequences made at a time: one NumPy call a token is shared among them


@dataclass(frozen=True)
class Chain:
    """A chain and what follows from it in closed form; entropies are in nats per symbol."""

    order: int
    n_symbols: int
    counts_SV: np.ndarray  # int, LEVELS times the transition probabilities; each row sums to LEVELS
    symbol_of_draw: np.ndarray  # [S * LEVELS]: draw u of state s gives the symbol at s LEVELS + u
    stationary_S: np.ndarray  # float64; state s has the digits, base V, of the last `order` symbols
    entropy_rate: float
    unigram_entropy: float
    sha256: str  # of the table


def make_chain(n_symbols: int, order: int, seed: int) -> Chain:
    """A random chain. Raises BadInput where its entropy rate would not be worth reaching."""
    if not MIN_SYMBOLS <= n_symbols <= MAX_SYMBOLS:
        raise BadInput(
            f"data.markov_symbols is {n_symbols}; it must be {MIN_SYMBOLS} to {MAX_SYMBOLS}"
        )
    if order < 1:
        raise BadInput(f"data.markov_order is {order}; it must be at least 1")
    if n_symbols**order * LEVELS > MAX_TABLE:
        raise BadInput(
            f"data.markov_symbols {n_symbols} to the power of data.markov_order {order} is more "
            f"than {MAX_TABLE // LEVELS} states; lower one of them"
        )
    counts_SV = _transitions(n_symbols, order, seed)
    p_SV = counts_SV / LEVELS
    stationary_S = _stationary(p_SV)
    unigram_V = stationary_S.reshape(-1, n_symbols).sum(0)
    rate = float(-(stationary_S * (p_SV * np.log(p_SV)).sum(1)).sum())
    unigram = float(-(unigram_V * np.log(unigram_V)).sum())
    if rate > 0.5 * min(unigram, np.log(n_symbols)):
        raise BadInput(
            f"the chain of seed {seed} has an entropy rate of {rate:.3f} nats, more than half of "
            f"its unigram entropy {unigram:.3f} or of ln {n_symbols}; choose more symbols or "
            "another seed"
        )
    sha = hashlib.sha256(
        f"markov {order} {n_symbols} ".encode() + counts_SV.astype("<u4").tobytes()
    )
    symbols = np.tile(np.arange(n_symbols, dtype=token_dtype(n_symbols)), len(counts_SV))
    return Chain(
        order=order,
        n_symbols=n_symbols,
        counts_SV=counts_SV,
        symbol_of_draw=np.repeat(symbols, counts_SV.ravel()),
        stationary_S=stationary_S,
        entropy_rate=rate,
        unigram_entropy=unigram,
        sha256=sha.hexdigest(),
    )


class Sequences(Rows):
    """Independent stretches of a chain in its stationary state, each made from its number alone.

    Sequences of different `stream` names have no draw in common.
    """

    def __init__(self, chain: Chain, stream: str, length: int):
        self._chain = chain
        self._key = _key(stream)
        self._length = length
        self._cumulative_S = np.cumsum(chain.stationary_S)
        # Neighbouring batches meet within a chunk, so two are kept.
        self._chunk = functools.lru_cache(maxsize=2)(self._generate)

    def rows(self, numbers: np.ndarray) -> Batch:
        """Every target counts, also the first few of a row that see less than a whole state."""
        tokens = np.empty((len(numbers), self._length + 1), np.int32)
        chunk = numbers // CHUNK
        for c in np.unique(chunk).tolist():
            tokens[chunk == c] = self._chunk(c)[numbers[chunk == c] % CHUNK]
        weights = np.ones((len(numbers), self._length), np.float32)
        return Batch(tokens[:, :-1].copy(), tokens[:, 1:].copy(), weights)

    def _generate(self, c: int) -> np.ndarray:
        """Sequences c CHUNK .. (c + 1) CHUNK - 1, shape [CHUNK, length + 1]."""
        n_states, v = self._chain.counts_SV.shape
        order, steps = self._chain.order, self._length + 1 - self._chain.order
        # A sequence takes one word for its first state and a quarter for each step; the counter
        # advances by one for every four words, so any sequence is reached at once.
        blocks = -(-(1 + -(-steps // 4)) // 4)
        words = np.random.Philox(key=self._key, counter=c * CHUNK * blocks)
        raw = words.random_raw(CHUNK * blocks * 4).reshape(CHUNK, blocks * 4)
        uniform = (raw[:, 0] >> np.uint64(11)) * 2.0**-53
        state = np.searchsorted(self._cumulative_S, uniform * self._cumulative_S[-1], "right")
        quarters = raw[:, 1:].astype("<u8").view("<u2") // (2**16 // LEVELS)
        draws = np.ascontiguousarray(quarters[:, :steps].T).astype(np.intp)
        out = np.empty((self._length + 1, CHUNK), self._chain.symbol_of_draw.dtype)
        for i in range(order):
            out[i] = state // v ** (order - 1 - i) % v
        for i, draw in enumerate(draws):
            symbol = self._chain.symbol_of_draw[state * LEVELS + draw]
            out[order + i] = symbol
            state = (state * v + symbol) % n_states
        return out.T


@dataclass(frozen=True)
class HeldOut(Rows):
    """The first `n_sequences` of a stream; only targets that see a whole state count.

    So the expected loss of a perfect model is the entropy rate, for any order.
    """

    sequences: Sequences
    order: int
    n_sequences: int

    def rows(self, numbers: np.ndarray) -> Batch:
        batch = self.sequences.rows(numbers)
        batch.weights[:, : self.order - 1] = 0
        batch.weights[numbers >= self.n_sequences] = 0
        return batch


def _key(name: str) -> int:
    """128 bits for a Philox generator."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")


def _transitions(v: int, order: int, seed: int) -> np.ndarray:
    """LEVELS times the transition probabilities, shape [v ** order, v], every entry at least 1."""
    words = np.random.Philox(key=_key(f"markov/{seed}/table"))
    n_states = v**order
    # The j-th preferred successors of the states that differ in their last symbol only are a
    # permutation, so every symbol is preferred equally often and the unigram entropy is high.
    keys = words.random_raw(n_states * PREFERRED).reshape(n_states // v, PREFERRED, v)
    order_CPV = np.argsort(keys, axis=-1, kind="stable")
    successors_SP = order_CPV.transpose(0, 2, 1).reshape(n_states, PREFERRED)
    # What is left after the floor, cut at uniformly drawn places.
    left = LEVELS - v
    places = words.random_raw(n_states * (PREFERRED - 1)) % np.uint64(left + 1)
    cuts = np.sort(places.astype(np.int64).reshape(n_states, PREFERRED - 1), axis=1)
    shares_SP = np.diff(cuts, axis=1, prepend=0, append=left)
    counts_SV = np.ones((n_states, v), np.int64)
    np.add.at(counts_SV, (np.arange(n_states)[:, None], successors_SP), shares_SP)
    return counts_SV


def _stationary(p_SV: np.ndarray) -> np.ndarray:
    """The distribution over states that a step leaves as it is, shape [S].

    By repeated steps: every entry of p is positive, so they converge from anywhere.
    """
    n_states, v = p_SV.shape
    pi_S = np.full(n_states, 1 / n_states)
    for _ in range(100_000):
        # State (x1 .. xk) and symbol x lead to state (x2 .. xk, x).
        after_S = (pi_S[:, None] * p_SV).reshape(v, -1).sum(0)
        after_S /= after_S.sum()
        if np.abs(after_S - pi_S).sum() < 1e-15:
            return after_S
        pi_S = after_S
    return pi_S
