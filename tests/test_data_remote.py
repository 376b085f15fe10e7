"""Data behind s3:// and gs://, read from stand-in servers on this machine."""

import json

import numpy as np
import pytest

pytest.importorskip("s3fs")
pytest.importorskip("moto.server")

from lm.config import DataConfig  # noqa: E402
from lm.data import files, remote, token_folder, tokenizing  # noqa: E402
from lm.data.build import build  # noqa: E402
from lm.data.inputs import Files  # noqa: E402
from lm.data.tokenizer import Bytes  # noqa: E402
from lm.errors import BadInput, CannotSave  # noqa: E402

TEXTS = [f"document {i} {'of words ' * (i % 5)}" for i in range(60)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ISOFLOP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path, texts) -> None:
    path.write_text("\n".join(json.dumps({"text": t}) for t in texts))


@pytest.mark.parametrize("store", ["s3", "gs"], indirect=True)
def test_a_glob_is_copied_once_and_again_when_it_changes(store, tmp_path, capsys, request):
    glob = f"{request.node.callspec.params['store']}://bucket/text/*.jsonl"
    for name, texts in (("a", TEXTS[:30]), ("b", TEXTS[30:])):
        write(tmp_path / f"{name}.jsonl", texts)
        store.put(str(tmp_path / f"{name}.jsonl"), f"bucket/text/{name}.jsonl")
    here = files.load(str(tmp_path / "*.jsonl"), 0.2)
    there = files.load(glob, 0.2)
    assert there == here
    assert "copying 2 files" in capsys.readouterr().err
    assert files.load(glob, 0.2) == here
    assert "copying" not in capsys.readouterr().err
    write(tmp_path / "b.jsonl", TEXTS[31:] + ["new"])
    store.put(str(tmp_path / "b.jsonl"), "bucket/text/b.jsonl")
    store.invalidate_cache()
    assert files.load(glob, 0.2) != here
    assert "copying 1 files" in capsys.readouterr().err


def test_token_folders(store, tmp_path):
    write(tmp_path / "a.jsonl", TEXTS)
    index = token_folder.new(tmp_path / "out", Bytes(), {})
    settings = tokenizing.Settings(0.2, 500, 1)
    tokenizing.tokenize(tmp_path / "out", index, Files([tmp_path / "a.jsonl"]), Bytes(), settings)
    store.put(str(tmp_path / "out"), "bucket/tokens", recursive=True)
    load = lambda path: build(DataConfig(source="tokens", path=path), 16, 0)
    here, there = load(str(tmp_path / "out")), load("s3://bucket/tokens")
    assert here.sha256 == there.sha256
    assert (here.batch(5, 8).inputs == there.batch(5, 8).inputs).all()
    np.arange(200, dtype="<u2").tofile(tmp_path / "own.bin")
    store.put(str(tmp_path / "own.bin"), "bucket/own/own.bin")
    assert load("s3://bucket/own/*.bin").n_train_tokens == 180


def test_what_cannot_be_read_is_named(store, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="s3://bucket/none.txt matches no file"):
        files.load("s3://bucket/none.txt", 0.1)
    with pytest.raises(BadInput, match="cannot read nothing://x"):
        files.load("nothing://x", 0.1)
    store.pipe("bucket/a.txt", b"text")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ISOFLOP_CACHE", str(tmp_path / "file"))
    with pytest.raises(CannotSave, match="set ISOFLOP_CACHE"):
        remote.files("s3://bucket/a.txt")
