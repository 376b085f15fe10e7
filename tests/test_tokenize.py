"""Token files: what is written, what an interruption changes (nothing), what is refused."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lm.config import DataConfig, default_config, freeze
from lm.data import inputs, token_files, token_folder, tokenizer_json, tokenizing
from lm.data.build import build
from lm.data.inputs import Files, Place
from lm.data.tokenizer import Bytes, Characters, document_ids, fingerprint, from_spec
from lm.errors import BadInput
from lm.train import workdir

ROOT = Path(__file__).parents[1]
WORDS = "the quick brown fox jumps over a lazy dog while naïve 日本 readers watch 😀 calmly".split()


def prose(n_words: int, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    breaks = rng.integers(0, 9, n_words)
    words = rng.choice(WORDS, n_words)
    return "".join(w + ("\n" if b == 0 else " ") for w, b in zip(words, breaks, strict=True))


@pytest.fixture(scope="module")
def bpe() -> tokenizer_json.TokenizerJson:
    return tokenizer_json.train_bpe([prose(3000)], 300)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(inputs, "PIECE", 500)
    monkeypatch.setattr(tokenizing, "BLOCK", 700)


def write_lines(path: Path, n: int, seed: int = 0) -> list[str]:
    texts = [prose(5 + (7 * i) % 40, seed + i) for i in range(n)]
    data = "".join(json.dumps({"text": t, "id": i}) + "\n" for i, t in enumerate(texts)).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return texts


def made(folder: Path, files: Files, tokenizer, held_out=0.0, shard=1500, workers=1) -> Path:
    index = (
        token_folder.read_index(folder)
        if (folder / token_folder.INDEX).exists()
        else token_folder.new(folder, tokenizer, {})
    )
    settings = tokenizing.Settings(held_out, shard, workers)
    tokenizing.tokenize(folder, index, files, tokenizer, settings)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != token_folder.INDEX}
    index = json.loads((folder / token_folder.INDEX).read_text())
    index.pop("seconds")
    return files | {token_folder.INDEX: json.dumps(index, sort_keys=True).encode()}


def all_ids(split) -> np.ndarray:
    return split.tokens[np.arange(len(split.tokens))]


class Interrupted(Exception):
    pass


class Cut:
    """Inputs whose reading ends with an error after some pieces."""

    def __init__(self, files: Files, n: int):
        self.size, self.unit, self._files, self._n = files.size, files.unit, files, n

    def pieces(self, start):
        for i, piece in enumerate(self._files.pieces(start)):
            if i == self._n:
                raise Interrupted
            yield piece


@pytest.mark.parametrize("kind,cuts", [("plain", (9, 7, 6)), ("jsonl.gz", (20, 18, 16))])
def test_an_interrupted_run_goes_on_to_the_same_bytes(tmp_path, bpe, small_pieces, kind, cuts):
    if kind == "plain":
        (tmp_path / "a.txt").write_text(prose(900))
        (tmp_path / "b.txt").write_text(prose(700, 1))
        files = Files([tmp_path / "a.txt", tmp_path / "b.txt"], held_out_share=0.1)
    else:
        write_lines(tmp_path / "a.jsonl.gz", 60)
        files = Files([tmp_path / "a.jsonl.gz"])
    whole = contents(made(tmp_path / "whole", files, bpe, 0.2))
    assert sum(name.endswith(".bin") for name in whole) > 4
    parts = tmp_path / "parts"
    for n in cuts:  # pieces read by each run
        with pytest.raises(Interrupted):
            made(parts, Cut(files, n), bpe, 0.2)
        with pytest.raises(BadInput, match="not finished"):
            token_files.load(str(parts), "bytes", 0.1, None)
    assert contents(made(parts, files, bpe, 0.2)) == whole


def test_workers_change_nothing(tmp_path, bpe, small_pieces):
    write_lines(tmp_path / "a.jsonl", 60)
    files = Files([tmp_path / "a.jsonl"])
    one = made(tmp_path / "one", files, bpe, 0.2)
    two = made(tmp_path / "two", files, bpe, 0.2, workers=2)
    assert contents(one) == contents(two)


def test_documents_come_back_whole_and_equal_ones_stay_together(tmp_path, bpe, small_pieces):
    texts = write_lines(tmp_path / "a.jsonl", 50)
    with open(tmp_path / "a.jsonl", "a") as f:
        f.write("\n" + json.dumps({"text": texts[3]}) + "\n" + json.dumps({"text": ""}) + "\n")
    folder = made(tmp_path / "out", Files([tmp_path / "a.jsonl"]), bpe, 0.3)
    tokens = token_files.load(str(folder), "bytes", 0.1, None)
    assert tokens.tokenizer == bpe
    found = []
    for split in (tokens.train, tokens.held_out):
        ids = all_ids(split)
        ends = split.ends.tolist()
        assert ids.dtype == np.uint16 and ends[-1] == len(ids)
        documents = [
            bpe.decode(ids[a : b - 1]).decode() for a, b in zip([0, *ends], ends, strict=False)
        ]
        assert (ids[split.ends - 1] == bpe.eos).all() and (ids == bpe.eos).sum() == len(ends)
        assert split.n_bytes == sum(len(d.encode()) for d in documents)
        found.append(documents)
    assert sorted(found[0] + found[1]) == sorted([*texts, texts[3]])
    assert len(found[1]) > 5 and not set(found[0]) & set(found[1])


def test_plain_text_is_split_by_characters_and_its_pieces_change_no_word(
    tmp_path, bpe, small_pieces
):
    text = prose(900)
    (tmp_path / "a.txt").write_bytes(text.encode())
    folder = made(tmp_path / "out", Files([tmp_path / "a.txt"], held_out_share=0.1), bpe)
    tokens = token_files.load(str(folder), "bytes", 0.1, None)
    n_train = len(text) * 9 // 10
    assert bpe.decode(all_ids(tokens.train)[:-1]).decode() == text[:n_train]
    assert bpe.decode(all_ids(tokens.held_out)[:-1]).decode() == text[n_train:]
    # Cut where a word-splitting tokenizer cuts anyway, so as if it had been read whole.
    assert all_ids(tokens.train)[:-1].tolist() == bpe.encode(text[:n_train].encode()).tolist()
    assert tokens.train.ends.tolist() == [len(tokens.train.tokens)]
    # Also of a document that goes on over several files.
    assert tokens.train.n_bytes == len(text[:n_train].encode())
    assert tokens.held_out.n_bytes == len(text[n_train:].encode())


def test_training_rows_come_from_the_files(tmp_path, small_pieces):
    text = prose(400)
    (tmp_path / "a.txt").write_bytes(text.encode())
    made(tmp_path / "out", Files([tmp_path / "a.txt"], held_out_share=0.1), Bytes(), shard=300)
    from_files = DataConfig(source="files", path=str(tmp_path / "a.txt"))
    from_tokens = DataConfig(source="tokens", path=str(tmp_path / "out"))
    a, b = build(from_files, 16, 0), build(from_tokens, 16, 0)
    assert a.n_train_sequences == b.n_train_sequences
    assert a.validation_bytes == b.validation_bytes and a.vocab_size == b.vocab_size
    for start in (0, 90, 10**7):
        one, two = a.batch(start, 8), b.batch(start, 8)
        assert (one.inputs == two.inputs).all() and (one.targets == two.targets).all()


def test_a_token_folder_read_as_text_is_told(tmp_path, small_pieces):
    (tmp_path / "a.txt").write_text(prose(100))
    folder = made(tmp_path / "out", Files([tmp_path / "a.txt"]), Bytes())
    with pytest.raises(BadInput, match="set data.source=tokens"):
        build(DataConfig(source="files", path=str(folder)), 16, 0)


def test_a_changed_tokenizer_is_refused(tmp_path, bpe, small_pieces):
    write_lines(tmp_path / "a.jsonl", 30)
    folder = made(tmp_path / "out", Files([tmp_path / "a.jsonl"]), bpe, 0.3)
    other = tokenizer_json.train_bpe([prose(3000, 5)], 280)
    (tmp_path / "other").mkdir()
    tokenizer_json.save(other, tmp_path / "other")
    with pytest.raises(BadInput, match="another tokenizer .fingerprint"):
        token_files.load(str(folder), str(tmp_path / "other"), 0.1, None)
    with pytest.raises(BadInput, match="characters with the token folder .*another"):
        token_files.load(str(folder), "characters", 0.1, None)
    token_files.load(str(folder), str(folder / "tokenizer.json"), 0.1, None)
    tokenizer_json.save(other, folder)
    with pytest.raises(BadInput, match="another tokenizer .fingerprint"):
        token_files.load(str(folder), "bytes", 0.1, None)


def test_a_damaged_folder_is_refused(tmp_path, small_pieces):
    (tmp_path / "a.txt").write_text(prose(400))
    folder = made(tmp_path / "out", Files([tmp_path / "a.txt"], held_out_share=0.1), Bytes())
    path = folder / "train-00000.bin"
    data = path.read_bytes()
    for damage in (data[:-2], data[:-1]):
        path.write_bytes(damage)
        with pytest.raises(BadInput, match="train-00000.bin"):
            token_files.load(str(folder), "bytes", 0.1, None)
    path.write_bytes(b"\xff\x7f" + data[2:])
    with pytest.raises(BadInput, match="token id 32767, outside the vocabulary of 256"):
        all_ids(token_files.load(str(folder), "bytes", 0.1, None).train)
    (folder / token_folder.INDEX).write_text("{}")
    with pytest.raises(BadInput, match="cannot be read as the index"):
        token_files.load(str(folder), "bytes", 0.1, None)


def test_files_of_other_origin(tmp_path):
    ids = np.random.default_rng(0).integers(0, 256, 1000)
    ids.astype("<u2").tofile(tmp_path / "train.bin")
    np.save(tmp_path / "more.npy", ids.astype(np.int64))
    load = lambda name, **more: build(
        DataConfig(source="tokens", path=str(tmp_path / name), **more), 16, 0
    )
    one, two = load("train.bin"), load("more.npy")
    assert one.n_train_tokens == two.n_train_tokens == 900
    assert one.validation_bytes is None
    assert (one.batch(3, 5).targets == two.batch(3, 5).targets).all()
    both = load("*.[bn]*", validation_path=str(tmp_path / "train.bin"))
    assert (both.n_train_tokens, both.n_validation_tokens) == (2000, 999)
    np.save(tmp_path / "bad.npy", np.array([3, -1]))
    with pytest.raises(BadInput, match="-1, below 0"):
        load("bad.npy")
    (tmp_path / "odd.bin").write_bytes(b"123")
    with pytest.raises(BadInput, match="whole ids of 2 bytes"):
        load("odd.bin")
    with pytest.raises(BadInput, match="no tokens.json"):
        load("")
    with pytest.raises(BadInput, match="data.path .* matches no file"):
        load("none*.bin")
    (tmp_path / "good.bin").write_bytes(b"1234")
    for name in ("none*.bin", "odd.txt"):
        (tmp_path / "odd.txt").write_bytes(b"")
        with pytest.raises(BadInput, match="data.validation_path"):
            token_files.load(str(tmp_path / "good.bin"), "bytes", 0.1, str(tmp_path / name))


@pytest.mark.parametrize(
    "vocab_size,dtype", [(256, "uint16"), (65536, "uint16"), (65537, "uint32")]
)
def test_file_type_follows_the_vocabulary(vocab_size, dtype):
    assert token_folder.file_dtype(vocab_size) == dtype


def test_trained_bpe_round_trips_and_knows_its_end_of_text(tmp_path, bpe):
    text = (prose(50, 9) + "\x00 ünseen\tbytes\r\n").encode()
    assert bpe.vocab_size == 300
    assert bpe.decode(bpe.encode(text)) == text
    assert bpe.bos is None and bpe.decode(np.array([bpe.eos])) == b"<|endoftext|>"
    tokenizer_json.save(bpe, tmp_path)
    again = tokenizer_json.load(str(tmp_path))
    assert again == bpe and fingerprint(again) == fingerprint(bpe)
    assert from_spec(json.loads(json.dumps(bpe.spec))) == bpe
    # Without the file that names it, there is no end of text: never a guess.
    (tmp_path / "tokenizer_config.json").unlink()
    assert tokenizer_json.load(str(tmp_path)).eos is None
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": {"content": "<s>"}}')
    with pytest.raises(BadInput, match="no token '<s>', which is its bos_token"):
        tokenizer_json.load(str(tmp_path))


def test_a_run_keeps_its_tokenizer_beside_its_config(tmp_path, bpe):
    config = default_config()
    config.train.steps = 1
    c = freeze(config)
    workdir.claim(tmp_path, c, {"corpus_sha256": "sha", "tokenizer": bpe.spec})
    saved = json.loads((tmp_path / "config.json").read_text())["provenance"]["tokenizer"]
    assert len(json.dumps(saved)) < 300
    assert from_spec(tokenizer_json.with_text(saved, tmp_path)) == bpe
    workdir.claim(tmp_path, c, {"corpus_sha256": "sha", "tokenizer": bpe.spec})
    other = tokenizer_json.train_bpe([prose(3000, 5)], 280)
    for changed in (other.spec, Bytes().spec):
        with pytest.raises(BadInput, match="the tokenizer has changed"):
            workdir.claim(tmp_path, c, {"corpus_sha256": "sha", "tokenizer": changed})
    (tmp_path / "tokenizer.json").write_text(other.text)
    with pytest.raises(BadInput, match="was changed since"):
        tokenizer_json.with_text(saved, tmp_path)
    assert tokenizer_json.with_text(Bytes().spec, tmp_path) == Bytes().spec


def test_one_token_that_begins_and_ends_stands_once_between_documents(bpe):
    ids = np.array([5, 6])
    both = tokenizer_json.TokenizerJson(bpe.text, "<|endoftext|>", "<|endoftext|>")
    assert document_ids(both, ids, True, True).tolist() == [5, 6, bpe.eos]
    two = tokenizer_json.TokenizerJson(bpe.text, "a", "<|endoftext|>")
    assert document_ids(two, ids, True, True).tolist() == [two.bos, 5, 6, bpe.eos]
    assert document_ids(two, ids, False, True).tolist() == [5, 6, bpe.eos]
    assert document_ids(Bytes(), ids, True, True) is ids


def test_a_vocabulary_that_the_text_cannot_give_is_refused():
    with pytest.raises(BadInput, match="too small"):
        tokenizer_json.train_bpe(["a"], 256)
    with pytest.raises(BadInput, match="at most, fewer than 400"):
        tokenizer_json.train_bpe(["ab ab"], 400)


def test_files_use_a_tokenizer_json(tmp_path, bpe):
    (tmp_path / "a.txt").write_text(prose(600))
    tokenizer_json.save(bpe, tmp_path)
    settings = DataConfig(
        source="files", path=str(tmp_path / "*.txt"), tokenizer=str(tmp_path / "tokenizer.json")
    )
    ds = build(settings, 16, 0)
    assert ds.vocab_size == 300 and ds.tokenizer == bpe
    row = ds.batch(0, 1).inputs[0]
    assert ds.tokenizer.decode(row).decode(errors="ignore") in prose(600) + "<|endoftext|>"
    targets = np.concatenate([b.targets[b.weights == 1] for b in ds.validation(4)])
    assert ds.validation_bytes == len(bpe.decode(targets[:-1]))
    (tmp_path / "broken.json").write_text('{"model": 1}')
    with pytest.raises(BadInput, match="broken.json: this is not a tokenizer"):
        tokenizer_json.load(str(tmp_path / "broken.json"))


def command(*args: str, **more) -> subprocess.CompletedProcess:
    argv = [sys.executable, "-m", "experiments.tokenize", *args]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, **more)


def test_the_command(tmp_path):
    (tmp_path / "a.txt").write_text(prose(2000))
    flags = [f"--path={tmp_path}/a.txt", f"--out={tmp_path}/out", "--workers=1"]
    bpe = ["--tokenizer=bpe", "--vocab_size=290"]
    first = command(*flags, *bpe)
    assert first.returncode == 0, first.stderr
    assert "MB/s with 1 workers" in first.stderr
    summary = json.loads(first.stdout)
    assert summary["vocab_size"] == 290 and summary["n_tokens"]["train"] > 2000
    refused = command(*flags, "--tokenizer=bytes")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "were made with another tokenizer" in refused.stderr


@pytest.mark.bench
def test_killed_and_run_again_it_writes_the_same_files(tmp_path):
    """The command itself, killed without warning again and again."""
    (tmp_path / "a.txt").write_text("".join(prose(20_000, i) for i in range(60)))
    flags = [f"--path={tmp_path}/a.txt", "--tokenizer=bytes", "--shard_mb=1", "--workers=2"]
    assert command(*flags, f"--out={tmp_path}/whole").returncode == 0
    argv = [sys.executable, "-m", "experiments.tokenize", *flags, f"--out={tmp_path}/parts"]
    for seconds in (1.0, 1.3, 1.6, 2.0):
        process = subprocess.Popen(
            argv, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not list((tmp_path / "parts").glob("train-*.bin")):
        time.sleep(0.01)
    process.terminate()
    assert "run the same command to go on" in process.communicate(timeout=60)[1]
    assert process.returncode == 75
    assert command(*flags, f"--out={tmp_path}/parts").returncode == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_bad_inputs_are_named(tmp_path):
    def read(name: str, data: bytes, **more):
        (tmp_path / name).write_bytes(data)
        return list(Files([tmp_path / name], **more).pieces(Place()))

    for name, data, words, more in [
        ("a.jsonl", b'{"text": "a"}\n{"body": "b"}\n', "without the field 'text' .*body", {}),
        ("b.jsonl", b"[1]\n", "without the field", {}),
        ("c.jsonl", b"not json\n", "c.jsonl has a line, before byte 9, that is not JSON", {}),
        ("d.jsonl", b'{"text": 3}\n', "not text but int", {}),
        ("k.jsonl", b'{"text": "a\\ud83d"}\n', r"k.jsonl .* byte 20, whose 'text' .*'.ud83d'", {}),
        ("e.txt", b"caf\xe9", "not UTF-8", {}),
        ("f.txt.gz", b"no gzip", "cannot read .*f.txt.gz", {}),
        ("g.txt.zst", b"no zstd", "cannot read .*g.txt.zst", {}),
        ("h.txt.gz", gzip.compress(b"x" * 5000)[:-9], "cannot read .*h.txt.gz", {}),
        ("i.parquet", b"no parquet", "cannot read .*i.parquet", {}),
    ]:
        with pytest.raises(BadInput, match=words):
            read(name, data, **more)
    with pytest.raises(BadInput, match="without documents among"):
        Files([tmp_path / "a.jsonl", tmp_path / "e.txt"])


def test_characters(tmp_path, small_pieces):
    (tmp_path / "a.txt").write_text(prose(300))
    files = Files([tmp_path / "a.txt"], held_out_share=0.1)
    tokenizer = Characters("".join(sorted(set(prose(300)))))
    tokens = token_files.load(
        str(made(tmp_path / "out", files, tokenizer)), "characters", 0.1, None
    )
    assert tokens.tokenizer == tokenizer
