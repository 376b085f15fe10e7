"""From the data settings to a data set. A source is one file and one entry in SOURCES."""

import dataclasses
import itertools
from collections.abc import Callable
from difflib import get_close_matches

from lm.config import DataConfig
from lm.data import files, markov, mixture, python_library, rows, split, token_files
from lm.data import tokenizer as tokenizers
from lm.data.corpus import Corpus
from lm.data.dataset import Batch, Dataset, dtypes
from lm.data.hugging_face import HuggingFace
from lm.data.rows import RowSettings
from lm.data.tokenizer import Symbols
from lm.errors import BadInput

__all__ = ["SOURCES", "Batch", "Dataset", "build", "dtypes"]


def build(data: DataConfig, length: int, seed: int) -> Dataset:
    """Read the corpus once and return it as rows of `length` targets.

    The order of training rows (or, for a made-up source, its text) follows from `seed`.
    Raises BadInput for a name that is not there, files that are not, a split too short, or a text
    named to a source that would read another.
    """
    source = _named(SOURCES, data.source, "data.source")
    for field, readers in READ_BY.items():
        if getattr(data, field) != getattr(DataConfig(), field) and data.source not in readers:
            raise BadInput(
                f"data.{field} is set and data.source is {data.source}, which does not read it: "
                f"set data.source to {' or '.join(readers)}, or data.{field} to its default"
            )
    return source(data, length, seed)


def from_corpus(corpus: Corpus, tokenizer_name: str, settings: RowSettings) -> Dataset:
    """Rows of a corpus of text; a document begins and ends with what its tokenizer has for that."""
    texts = ([d.text for d in corpus.train], [d.text for d in corpus.validation])
    tokenizer = tokenizers.make(tokenizer_name, itertools.chain(*texts))
    train, held_out = (split.encoded(tokenizer, documents) for documents in texts)
    return rows.from_splits(train, held_out, tokenizer, corpus.sha256, settings)


def _python_library(data: DataConfig, length: int, seed: int) -> Dataset:
    return from_corpus(python_library.load(), data.tokenizer, rows.settings(data, length, seed))


def _files(data: DataConfig, length: int, seed: int | str) -> Dataset:
    corpus = files.load(data.path, data.validation_fraction, data.text_field, data.separator)
    return from_corpus(corpus, data.tokenizer, rows.settings(data, length, seed))


def _hugging_face(data: DataConfig, length: int, seed: int) -> Dataset:
    """A data set that is read whole; a streamed one is made into token files first."""
    if not data.path:
        raise BadInput(
            "data.source=huggingface needs data.path: a name on the Hub, or a folder of data files"
        )
    found = HuggingFace(data.path, data.subset, data.split, data.text_field)
    corpus = files.from_inputs(found, data.validation_fraction)
    return from_corpus(corpus, data.tokenizer, rows.settings(data, length, seed))


def _tokens(data: DataConfig, length: int, seed: int | str) -> Dataset:
    args = (data.path, data.tokenizer, data.validation_fraction, data.validation_path)
    return rows.from_splits(*token_files.load(*args), rows.settings(data, length, seed))


def _mixture(data: DataConfig, length: int, seed: int) -> Dataset:
    """Token folders, or files read by data.tokenizer, each by its weight."""

    def make(path: str, order: int | str) -> Dataset:
        one = dataclasses.replace(data, path=path)
        read = _tokens if token_files.are_tokens(path) else _files
        return read(one, length, order)

    return mixture.mix(mixture.check(data.mixture), make, seed)


def _markov(data: DataConfig, length: int, seed: int) -> Dataset:
    """Its tokens are symbols; data.tokenizer is for text and is not read."""
    if data.packing != "concatenate":
        raise BadInput(
            f"data.packing={data.packing} with data.source=markov: its rows are one stretch each, "
            "there are no documents to pack; set data.packing=concatenate"
        )
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
    "tokens": _tokens,
    "huggingface": _hugging_face,
    "mixture": _mixture,
    "markov": _markov,
}

# What says which text it is, and the sources that read it: a run on another would be silent.
READ_BY = {
    "path": ("files", "tokens", "huggingface"),
    "validation_path": ("tokens",),
    "validation_fraction": ("files", "tokens", "huggingface", "mixture"),
    "mixture": ("mixture",),
    "subset": ("huggingface",),
    "split": ("huggingface",),
    "text_field": ("files", "huggingface", "mixture"),
    "separator": ("files", "mixture"),
}


def _named(table: dict, name: str, field: str):
    if name not in table:
        near = get_close_matches(name, table, 1, 0)[0]
        names = ", ".join(table)
        raise BadInput(f"{field} {name!r} is not one of {names}; did you mean {near!r}?")
    return table[name]
