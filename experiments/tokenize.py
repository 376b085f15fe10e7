"""Turns text into token files that training reads without loading them.

    python -m experiments.tokenize --path='corpus/*.jsonl.zst' --tokenizer=tokenizer.json \\
        --out=tokens/corpus
    python -m experiments.train --config=experiments/configs/tiny.py --workdir=runs/tokens \\
        --config.data.source=tokens --config.data.path=tokens/corpus

--path is a glob of text, JSONL (.jsonl, .ndjson) or Parquet files; text and JSONL may be compressed
(.gz, .zst), and all may lie behind s3:// or gs://. With --source=huggingface it is a data set's
name on the Hub or a folder, downloaded whole or read as it comes (--streaming). --tokenizer is a
tokenizer.json (or its folder), bytes, characters, or bpe, which trains a byte-level BPE of
--vocab_size tokens on the text first:

    python -m experiments.tokenize --path='corpus/*.txt' --tokenizer=bpe --vocab_size=32768 \\
        --out=tokens/corpus

The folder gets the tokens of both splits, the tokenizer and tokens.json, which says what is there.
A share of the documents, chosen by their text, is held out (equal documents stay together); of text
without documents, its end. Each document gets the tokenizer's bos and eos tokens, where it has them
(tokenizer_config.json names them). All cores work. An interrupted run goes on where it stood when
the same command is run again, and writes the same files to the bit; a folder of other text or of
another tokenizer is refused. Documents that equal an earlier one are counted, and with
--near_duplicates those that nearly do (MinHash), also across the splits; nothing is left out.
"""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

from absl import flags

from experiments import cli
from lm.errors import BadInput, Stopped
from lm.progress import Progress, clock, say

PATH = flags.DEFINE_string("path", None, "glob of files: text, .jsonl, .parquet; .gz and .zst")
SOURCE = flags.DEFINE_enum(
    "source",
    "files",
    ["files", "huggingface"],
    "huggingface: --path is a data set's name or folder",
)
SUBSET = flags.DEFINE_string("subset", None, "configuration of a Hugging Face data set")
SPLIT = flags.DEFINE_string("split", "train", "split of a Hugging Face data set")
STREAMING = flags.DEFINE_bool("streaming", False, "read a Hugging Face data set as it downloads")
OUT = flags.DEFINE_string("out", None, "the folder for the token files")
TOKENIZER = flags.DEFINE_string("tokenizer", None, "FILE or folder, bytes, characters, bpe")
VOCAB_SIZE = flags.DEFINE_integer("vocab_size", None, "tokens of the bpe to train")
BPE_MB = flags.DEFINE_float("bpe_mb", None, "train the bpe on so many MB of text; none: on all")
TEXT_FIELD = flags.DEFINE_string("text_field", "text", "field or column that holds the text")
SEPARATOR = flags.DEFINE_string(
    "separator", None, "what stands between the documents of a text file; none: a file is one"
)
FRACTION = flags.DEFINE_float("validation_fraction", 0.01, "share that is held out")
SHARD_MB = flags.DEFINE_float("shard_mb", 64, "MB of text a file; what an interruption can cost")
WORKERS = flags.DEFINE_integer(
    "workers", None, "processes; none: one a core", lower_bound=1, upper_bound=1024
)

NEAR = flags.DEFINE_bool("near_duplicates", False, "also count near duplicates; takes longer")


def main() -> int | None:
    _check_flags()
    from lm.data import token_folder, tokenizing

    folder = Path(os.path.expanduser(OUT.value or ""))
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"--out={folder} is not a folder: choose another")
    tokenizing_settings = tokenizing.Settings(
        FRACTION.value, int(SHARD_MB.value * 1e6), WORKERS.value or _cores(), NEAR.value
    )
    inputs = _inputs()
    begun: token_folder.Begun | None = None
    index = token_folder.read_index(folder) if (folder / token_folder.INDEX).exists() else None
    settings = _settings(inputs)
    if index is not None:
        tokenizer = _same_tokenizer(folder, index, inputs)
        _refuse_other_settings(folder, index.settings, settings)
        if index.finished:
            say(f"{folder} is finished: {_summary(index)}; nothing to do")
            print(_json(index))
            return None
        files = sum(map(len, index.splits.values()))
        say(f"{folder}: going on after {files} files of tokens")
    else:
        tokenizer = _tokenizer(inputs)
        begun = token_folder.Begun(folder)
        index = token_folder.new(folder, tokenizer, settings)
    signal.signal(signal.SIGTERM, _stop)
    started, text_before = time.monotonic(), _text_bytes(index)
    try:
        tokenizing.tokenize(folder, index, inputs, tokenizer, tokenizing_settings)
        if not any(index.splits.values()):
            raise BadInput(f"--path {PATH.value} holds no text: name files that have some")
    except BadInput:
        # A disk that fails for once is told like text that is none: what is finished is kept.
        if begun and not any(index.splits.values()):
            begun.undo()
        raise
    seconds = time.monotonic() - started
    n_bytes = _text_bytes(index) - text_before
    say(
        f"{folder}: {n_bytes / 1e6:,.1f} MB of text in {clock(seconds)}, "
        f"{n_bytes / 1e6 / seconds:.1f} MB/s with {tokenizing_settings.workers} workers; "
        f"{_summary(index)}"
    )
    say(f"{folder}: {_repeats(index.duplicates)}")
    print(_json(index))
    return None


def _check_flags() -> None:
    for name, value, meant in (
        ("path", PATH.value, "a glob of text, JSONL or Parquet files"),
        ("out", OUT.value, "the folder for the token files"),
        ("tokenizer", TOKENIZER.value, "a tokenizer.json, bytes, characters or bpe"),
    ):
        if not value:
            raise BadInput(f"--{name} is not given: add {meant}")
    if (TOKENIZER.value == "bpe") != (VOCAB_SIZE.value is not None):
        raise BadInput(
            "--vocab_size is the size of a bpe to train: give it with --tokenizer=bpe, only then"
        )
    if BPE_MB.value is not None and (TOKENIZER.value != "bpe" or BPE_MB.value <= 0):
        raise BadInput("--bpe_mb is how much text --tokenizer=bpe trains on: more than 0, or none")
    if not 0 <= FRACTION.value < 1:
        raise BadInput(
            f"--validation_fraction is {FRACTION.value}: it must be at least 0 and below 1"
        )
    if SHARD_MB.value <= 0:
        raise BadInput(f"--shard_mb is {SHARD_MB.value}: it must be greater than 0")
    if VOCAB_SIZE.value is not None:
        from lm.data import tokenizer_json

        tokenizer_json.check_vocabulary(VOCAB_SIZE.value)
    if "://" in (OUT.value or ""):
        raise BadInput(
            f"--out={OUT.value} is not a folder of this machine: write the tokens here, and copy "
            "the folder there with the store's own tool"
        )
    if SEPARATOR.value == "":
        raise BadInput("--separator is empty: leave it out, or say what stands between documents")


def _inputs():
    from lm.data import files
    from lm.data.hugging_face import HuggingFace
    from lm.data.inputs import Files

    if SOURCE.value == "huggingface":
        named = (SUBSET.value, SPLIT.value or "", TEXT_FIELD.value or "", STREAMING.value)
        return HuggingFace(PATH.value or "", *named)
    paths = [path for _, path in files.matches(PATH.value or "", "--path")]
    return Files(paths, TEXT_FIELD.value, SEPARATOR.value, FRACTION.value)


def _settings(inputs) -> dict:
    """What, beside the tokenizer, says which tokens come out and in which files."""
    return {
        "inputs": inputs.identity(),
        "validation_fraction": FRACTION.value,
        "shard_mb": SHARD_MB.value,
        "near_duplicates": NEAR.value,
        "bpe": [VOCAB_SIZE.value, BPE_MB.value] if TOKENIZER.value == "bpe" else None,
    }


def _tokenizer(inputs):
    from lm.data import tokenizer, tokenizer_json
    from lm.data.inputs import Place

    if TOKENIZER.value != "bpe":
        encoded = (piece.text.encode() for piece in inputs.pieces(Place()))
        return tokenizer.make(TOKENIZER.value or "", encoded, "--tokenizer (or bpe)")
    started = time.monotonic()
    say(f"training a bpe of {VOCAB_SIZE.value} tokens")
    progress = Progress("reading for the bpe", 100, unit="%")

    def read():
        for piece in inputs.pieces(Place()):
            progress.update(100 * piece.read // max(inputs.size, 1))
            yield piece.text

    with contextlib.closing(progress):
        sample = (
            read() if BPE_MB.value is None else tokenizer_json.sample(read(), BPE_MB.value * 1e6)
        )
        bpe = tokenizer_json.train_bpe(sample, VOCAB_SIZE.value or 0)
    say(f"trained the bpe in {clock(time.monotonic() - started)}")
    return bpe


def _same_tokenizer(folder: Path, index, inputs):
    """The folder's tokenizer; raises BadInput if the flags ask for another."""
    from lm.data import token_folder

    tokenizer = token_folder.tokenizer_of(folder, index)
    if TOKENIZER.value != "bpe":
        token_folder.refuse_other(folder, index, _tokenizer(inputs))
    elif index.settings["bpe"] is None:
        raise BadInput(
            f"the tokens in {folder} were made with another tokenizer, not with a bpe trained on "
            "this text: choose another --out"
        )
    return tokenizer


def _refuse_other_settings(folder: Path, theirs: dict, ours: dict) -> None:
    ours = json.loads(json.dumps(ours))
    for name, value in ours.items():
        if theirs.get(name) != value:
            told = f" ({theirs.get(name)} there, {value} now)" if name != "inputs" else ""
            raise BadInput(
                f"{folder} was begun with other {name}{told}: choose another --out, or remove the "
                "folder to begin again"
            )


def _cores() -> int:
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def _text_bytes(index) -> int:
    return sum(index.total(split, "n_bytes") for split in index.splits)


def _summary(index) -> str:
    counts = [f"{index.total(split, 'n_tokens'):,} {split}" for split in index.splits]
    documents = sum(index.total(split, "n_documents") for split in index.splits)
    tokens = sum(index.total(split, "n_tokens") for split in index.splits)
    return (
        f"{' and '.join(counts)} tokens of a vocabulary of {index.vocab_size:,}, {documents:,} "
        f"documents, {_text_bytes(index) / max(tokens, 1):.2f} bytes a token"
    )


def _repeats(found) -> str:
    exact = f"{found['exact']:,} of {found['documents']:,} documents equal an earlier one"
    if "near" not in found:
        return exact
    return (
        f"{exact}, {found['near']:,} more nearly repeat one; {found['near_across_splits']:,} "
        "held-out documents have an equal or a near duplicate in training"
    )


def _json(index) -> str:
    return json.dumps(
        {
            "n_tokens": {split: index.total(split, "n_tokens") for split in index.splits},
            "n_documents": {split: index.total(split, "n_documents") for split in index.splits},
            "n_bytes": {split: index.total(split, "n_bytes") for split in index.splits},
            "vocab_size": index.vocab_size,
            "tokenizer": index.tokenizer,
            "sha256": index.sha256,
            "seconds": index.seconds,
            "duplicates": index.duplicates,
        }
    )


def _stop(number, frame) -> None:
    raise Stopped(f"SIGTERM: whole files are kept in {OUT.value}; run the same command to go on")


def run() -> None:
    cli.run(main)


if __name__ == "__main__":
    run()
