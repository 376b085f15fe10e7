"""What experiments.tokenize is given and cannot use: one sentence, and nothing stays on disk."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from absl import flags
from absl.testing import flagsaver
from fresh_command import fresh

from experiments import cli
from lm.data import files, inputs, tokenizer_json, tokenizing
from lm.data.inputs import Files, Place
from lm.errors import BadInput, CannotSave

DEEP = b"[" * 100_000


@pytest.fixture(autouse=True)
def handlers():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def tokenize(path: Path, out: Path, *more: str) -> None:
    given = {arg.split("=")[0] for arg in more}
    usual = [f"--path={path}", f"--out={out}", "--tokenizer=bytes", "--workers=1"]
    args = [arg for arg in usual if arg.split("=")[0] not in given]
    with fresh("tokenize") as command, flagsaver.flagsaver():
        flags.FLAGS.unparse_flags()
        cli._parse(["tokenize", *args, *more])
        with cli._one_sentence():
            command.main()


def refused(sentence: str, *args) -> None:
    with pytest.raises(BadInput) as e:
        tokenize(*args)
    said = str(e.value)
    assert re.search(sentence, said) and "\n" not in said and len(said) < 600, said


@pytest.mark.parametrize(
    "args, sentence",
    [
        (["--shard_mb=inf"], "--shard_mb is inf: a finite number"),
        (["--shard_mb=nan"], "--shard_mb is nan: a finite number"),
        (["--shard_mb=0"], "--shard_mb is 0.0: it must be greater than 0"),
        (["--tokenizer=bpe", "--vocab_size=300", "--bpe_mb=nan"], "--bpe_mb is nan: a finite"),
        (["--tokenizer=bpe", f"--vocab_size={10**11}"], "100,000,000,000 is larger than 16,777,"),
        (["--tokenizer=bpe", f"--vocab_size={10**30}"], "--vocab_size is larger than any whole"),
        (["--tokenizer=bpe", "--vocab_size=256"], "256 is too small"),
        (["--validation_fraction=nan"], "--validation_fraction is nan"),
        (["--workers=0"], "workers"),
        (["--workers=100000"], "workers"),
    ],
    ids=" ".join,
)
def test_flags_are_refused_before_anything_is_made(tmp_path, args, sentence):
    (tmp_path / "a.txt").write_text("some text")
    refused(sentence, tmp_path / "a.txt", tmp_path / "out", *args)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name, data, sentence",
    [
        ("a.txt", b"", "--path .*a.txt holds no text: name files that have some"),
        ("a.jsonl", b'{"text": ""}\n\n', "--path .*a.jsonl holds no text"),
        ("a.jsonl", b'{"text": "x"}\nno json\n', "a.jsonl has a line, before byte 22, that is no"),
        ("a.jsonl", b'{"text": "x"}\n' + DEEP + b"\n", "that is not JSON: it is nested too deeply"),
        ("a.txt", b"x\xff", "a.txt is not UTF-8"),
    ],
    ids=["empty", "blank", "no JSON", "deep", "bytes"],
)
def test_text_that_cannot_be_used_leaves_nothing(tmp_path, name, data, sentence):
    path, out = tmp_path / name, tmp_path / "new" / "out"
    path.write_bytes(data)
    refused(sentence, path, out, "--validation_fraction=0")
    assert [p.name for p in tmp_path.iterdir()] == [name]
    # What somebody else has put into the folder stays there.
    out.mkdir(parents=True)
    (out / "notes.txt").write_text("mine")
    refused(sentence, path, out, "--validation_fraction=0")
    assert [p.name for p in out.iterdir()] == ["notes.txt"]


def test_a_tokenizer_of_the_folder_stays_and_whole_text_is_finished(tmp_path):
    bpe = tokenizer_json.train_bpe(["some text of words"], 257)
    out = tmp_path / "out"
    out.mkdir()
    tokenizer_json.save(bpe, out)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "x"}\nno json\n')
    refused("not JSON", tmp_path / "a.jsonl", out, f"--tokenizer={out}")
    assert sorted(p.name for p in out.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "x"}\n')
    tokenize(tmp_path / "a.jsonl", out, f"--tokenizer={out}")
    assert json.loads((out / "tokens.json").read_text())["finished"]


def test_a_disk_that_fails_for_once_costs_no_finished_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizing, "BLOCK", 100)
    for name in "ab":
        lines = (json.dumps({"text": f"{name} {i} of words"}) for i in range(40))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    args = (tmp_path / "*.jsonl", tmp_path / "out", "--shard_mb=0.0002", "--validation_fraction=0")

    def failing(path, *mode):
        if path.name == "b.jsonl":
            raise OSError(5, "Input/output error")
        return open(path, *mode)

    with monkeypatch.context() as patch:
        patch.setattr(inputs, "open", failing, raising=False)
        refused("cannot read .*b.jsonl .Input/output error", *args)
    kept = {p.name: p.stat().st_ino for p in (tmp_path / "out").glob("train-*.bin")}
    assert kept
    tokenize(*args)
    now = {p.name: p.stat().st_ino for p in (tmp_path / "out").glob("train-*.bin")}
    assert len(now) > len(kept) and now.items() > kept.items()


def test_an_out_that_is_no_folder_is_told_before_the_text_is_read(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "file").write_text("mine")
    refused("--out=.*file is not a folder: choose another", tmp_path / "absent", tmp_path / "file")
    refused("choose another", tmp_path / "a.txt", tmp_path / "file" / "below")
    refused("too long|choose another", tmp_path / "a.txt", tmp_path / ("x" * 300))
    assert (tmp_path / "file").read_text() == "mine"

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tmp_path), "mkdir", full)
    with pytest.raises(CannotSave, match="No space left on device"):
        tokenize(tmp_path / "a.txt", tmp_path / "out")


def test_a_path_that_matches_nothing_names_the_folder_it_was_looked_for_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, folder in (
        ("input.txt", f"{tmp_path}"),
        ("*/x.txt", f"{tmp_path}"),
        ("data/*.txt", f"{tmp_path}/data, which is not there"),
        (f"{tmp_path}/[ab]/c*", f"{tmp_path}"),
    ):
        with pytest.raises(BadInput) as e:
            files.matches(path)
        assert f"data.path {path} matches no file (looked in {folder})" in str(e.value)


@pytest.mark.parametrize("content", ["[]", DEEP.decode(), '{"eos_token": 5}'])
def test_a_side_file_of_a_tokenizer_that_is_none_is_told(tmp_path, content):
    tokenizer_json.save(tokenizer_json.train_bpe(["a b"], 257), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(BadInput, match="tokenizer_config.json"):
        tokenizer_json.load(str(tmp_path))


def test_a_deep_line_does_not_end_a_run_with_a_traceback(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(DEEP)
    with pytest.raises(BadInput, match="nested too deeply"):
        list(Files([tmp_path / "a.jsonl"]).pieces(Place()))
    assert os.listdir(tmp_path) == ["a.jsonl"]
