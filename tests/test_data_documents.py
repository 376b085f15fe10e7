"""Files of documents, compressed or not: every document whole, from any place on."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lm.config import DataConfig
from lm.data import files, inputs
from lm.data.build import build
from lm.data.inputs import Files, Place
from lm.errors import BadInput

TEXTS = [f"document {i}\nof {'many ' * (i % 7)}words é日😀" for i in range(40)]


def jsonl(field: str = "text") -> bytes:
    return "".join(json.dumps({"id": i, field: t}) + "\n" for i, t in enumerate(TEXTS)).encode()


def frames(data: bytes) -> bytes:
    """Two zstd frames one after another, as parallel compressors write them."""
    compress = zstandard.ZstdCompressor().compress
    return compress(data[:1000]) + compress(data[1000:])


def write_parquet(path, field="text", **more):
    pq.write_table(pa.table({"id": range(len(TEXTS)), field: TEXTS} | more), path, row_group_size=7)


def write_all(folder) -> list[str]:
    """The same documents in every format; returns the names."""
    separated = "\n<|end|>\n".join(TEXTS).encode()
    written = {
        "a.jsonl": jsonl(),
        "b.jsonl.gz": gzip.compress(jsonl()[:500]) + gzip.compress(jsonl()[500:]),
        "c.ndjson.zst": frames(jsonl()),
        "d.txt": separated,
        "e.txt.gz": gzip.compress(separated),
    }
    for name, data in written.items():
        (folder / name).write_bytes(data)
    write_parquet(folder / "f.parquet")
    return [*written, "f.parquet"]


def source(path, **more) -> Files:
    separator = "<|end|>" if ".txt" in path.name else None
    return Files([path], separator=separator, **more)


def test_every_format_gives_the_documents_from_any_place_on(tmp_path):
    for name in write_all(tmp_path):
        reader = source(tmp_path / name)
        pieces = list(reader.pieces(Place()))
        assert [p.text for p in pieces] == TEXTS, name
        assert all(p.begins and p.ends and p.held_out is None for p in pieces)
        assert pieces[-1].read == reader.size and pieces[0].read <= reader.size
        for i in (0, 6, 7, 33, 39):
            rest = [p.text for p in reader.pieces(pieces[i].after)]
            assert rest == TEXTS[i + 1 :], (name, i)


def test_several_files_are_read_one_after_another(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl())
    write_parquet(tmp_path / "b.parquet")
    reader = Files([tmp_path / "a.jsonl", tmp_path / "b.parquet"])
    pieces = list(reader.pieces(Place()))
    assert [p.text for p in pieces] == TEXTS + TEXTS
    assert [p.text for p in reader.pieces(pieces[55].after)] == TEXTS[16:]


def test_plain_text_in_pieces_is_the_text(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "PIECE", 64)
    text = "\n".join(TEXTS) + "é" * 200 + "\n\n  indented\nend"
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.txt.zst").write_bytes(frames(text.encode()))
    for name in ("a.txt", "b.txt.zst"):
        reader = Files([tmp_path / name], held_out_share=0.25)
        pieces = list(reader.pieces(Place()))
        assert max(len(p.text.encode()) for p in pieces) <= 64
        n_train = len(text) * 3 // 4
        assert "".join(p.text for p in pieces if not p.held_out) == text[:n_train]
        assert "".join(p.text for p in pieces if p.held_out) == text[n_train:]
        assert sum(p.begins for p in pieces) == sum(p.ends for p in pieces) == 2
        for i in range(len(pieces)):
            assert list(reader.pieces(pieces[i].after)) == pieces[i + 1 :]


def test_training_reads_each_format_alike(tmp_path):
    seen = set()
    for name in write_all(tmp_path):
        separator = "<|end|>" if ".txt" in name else None
        settings = DataConfig(
            source="files", path=str(tmp_path / name), separator=separator, packing="best_fit"
        )
        ds = build(settings, 16, 0)
        b = ds.batch(0, 8)
        seen.add((ds.sha256, b.inputs.tobytes(), b.segments.tobytes(), ds.validation_bytes))
    assert len(seen) == 1


def test_compressed_text_is_the_text(tmp_path):
    text = "".join(TEXTS).encode()
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text))
    plain, packed = (files.load(str(tmp_path / n), 0.1) for n in ("a.txt", "b.txt.gz"))
    for split in ("train", "validation"):
        one, two = (b"".join(d.text for d in getattr(c, split)) for c in (plain, packed))
        assert one == two


def test_equal_documents_are_on_the_same_side(tmp_path):
    lines = [json.dumps({"text": t}) for t in TEXTS * 3]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    corpus = files.load(str(tmp_path / "a.jsonl"), 0.3)
    train, held_out = ({d.text for d in s} for s in (corpus.train, corpus.validation))
    assert len(train) + len(held_out) == len(TEXTS) and not train & held_out
    assert 0.1 < len(held_out) / len(TEXTS) < 0.5


def test_another_field(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl("content"))
    write_parquet(tmp_path / "b.parquet", "content", text=list(range(len(TEXTS))))
    for name in ("a.jsonl", "b.parquet"):
        reader = Files([tmp_path / name], text_field="content")
        assert [p.text for p in reader.pieces(Place())] == TEXTS
    with pytest.raises(BadInput, match="column 'text' of .* holds int64, not text"):
        list(Files([tmp_path / "b.parquet"]).pieces(Place()))
    with pytest.raises(BadInput, match="no column 'body' .*id, content, text"):
        list(Files([tmp_path / "b.parquet"], text_field="body").pieces(Place()))
