"""From the data settings to a data set. A source is one file and one entry in SOURCES."""

from collections.abc import Callable
from difflib import get_close_matches

from lm.config import DataConfig
from lm.data import files, markov, python_library
from lm.data.corpus import Corpus
from lm.data.dataset import Batch, Dataset
from lm.data.tokenizer import TOKENIZERS, Symbols
from lm.data.windows import ShuffledWindows, Windows
from lm.errors import BadInput

__all__ = ["SOURCES", "Batch", "Dataset", "build"]


def build(data: DataConfig, length: int, seed: int) -> Dataset:
    """Read the corpus once and return it as rows of `length` targets.

    The order of training rows (or, for a made-up source, its text) follows from `seed`.
    Raises BadInput for a name that is not there, files that are not, or a split too short.
    """
    return _named(SOURCES, data.source, "data.source")(data, length, seed)


def from_corpus(corpus: Corpus, tokenizer_name: str, length: int, seed: int) -> Dataset:
    """Rows of `length` targets of a corpus of text, its documents joined with nothing between."""
    train_text = b"".join(d.text for d in corpus.train)
    held_out_text = b"".join(d.text for d in corpus.validation)
    make = _named(TOKENIZERS, tokenizer_name, "data.tokenizer")
    tokenizer = make([train_text, held_out_text])
    train = tokenizer.encode(train_text)
    held_out = tokenizer.encode(held_out_text)
    for name, tokens in (("training", train), ("validation", held_out)):
        if len(tokens) < length + 1:
            raise BadInput(
                f"the {name} split has {len(tokens)} tokens, fewer than the {length + 1} of one "
                f"sequence (data.length {length}, and one more to predict); give more text or a "
                "shorter data.length"
            )
    n_train = (len(train) - 1) // length
    return Dataset(
        vocab_size=tokenizer.vocab_size,
        tokenizer=tokenizer,
        sha256=corpus.sha256,
        n_train_tokens=len(train),
        n_train_sequences=n_train,
        n_validation_sequences=-(-(len(held_out) - 1) // length),
        n_validation_tokens=len(held_out) - 1,
        # The first token is given, never predicted.
        validation_bytes=len(held_out_text) - len(tokenizer.decode(held_out[:1])),
        entropy_rate=None,
        train=ShuffledWindows(Windows(train, length), n_train, seed),
        held_out=Windows(held_out, length),
    )


def _python_library(data: DataConfig, length: int, seed: int) -> Dataset:
    return from_corpus(python_library.load(), data.tokenizer, length, seed)


def _files(data: DataConfig, length: int, seed: int) -> Dataset:
    corpus = files.load(data.path, data.validation_fraction)
    return from_corpus(corpus, data.tokenizer, length, seed)


def _markov(data: DataConfig, length: int, seed: int) -> Dataset:
    """Its tokens are symbols; data.tokenizer is for text and is not read."""
    chain = markov.make_chain(data.markov_symbols, data.markov_order, seed)
    if length < chain.order:
        raise BadInput(
            f"data.length {length} is shorter than data.markov_order {chain.order}: no target "
            "would see a whole state: raise data.length"
        )
    if data.markov_validation_tokens < 1:
        raise BadInput(
            f"data.markov_validation_tokens is {data.markov_validation_tokens}; it must be at "
            "least 1, and a million for a loss to three digits"
        )
    n_valid = length - (chain.order - 1)  # targets that see a whole state, in one sequence
    n_held_out = -(-data.markov_validation_tokens // n_valid)
    held_out = markov.Sequences(chain, f"markov/{seed}/validation", length)
    return Dataset(
        vocab_size=chain.n_symbols,
        tokenizer=Symbols(chain.n_symbols),
        sha256=chain.sha256,
        n_train_tokens=None,
        n_train_sequences=None,
        n_validation_sequences=n_held_out,
        n_validation_tokens=n_held_out * n_valid,
        validation_bytes=None,
        entropy_rate=chain.entropy_rate,
        train=markov.Sequences(chain, f"markov/{seed}/training", length),
        held_out=markov.HeldOut(held_out, chain.order, n_held_out),
    )


SOURCES: dict[str, Callable[[DataConfig, int, int], Dataset]] = {
    "python_library": _python_library,
    "files": _files,
    "markov": _markov,
}


def _named(table: dict, name: str, field: str):
    if name not in table:
        near = get_close_matches(name, table, 1, 0)[0]
        names = ", ".join(table)
        raise BadInput(f"{field} {name!r} is not one of {names}; did you mean {near!r}?")
    return table[name]
