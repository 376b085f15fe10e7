"""Hugging Face data sets, from a folder of this machine: whole and streamed, from any row on."""

import json

import pytest

datasets = pytest.importorskip("datasets")

from lm.config import DataConfig  # noqa: E402
from lm.data import token_files, token_folder, tokenizing  # noqa: E402
from lm.data.build import build  # noqa: E402
from lm.data.hugging_face import HuggingFace  # noqa: E402
from lm.data.inputs import Files, Place  # noqa: E402
from lm.data.tokenizer import Bytes  # noqa: E402
from lm.errors import BadInput  # noqa: E402

TEXTS = [f"document {i} {'of words ' * (i % 5)}é" for i in range(50)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same documents as data files, and as the library saves them."""
    root = tmp_path_factory.mktemp("hf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(root / "cache"))
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        (root / "files").mkdir()
        lines = [json.dumps({"text": t, "id": i}) for i, t in enumerate(TEXTS)]
        (root / "files" / "train.jsonl").write_text("\n".join(lines))
        saved = datasets.Dataset.from_dict({"text": TEXTS, "id": list(range(50))})
        datasets.DatasetDict({"train": saved}).save_to_disk(str(root / "saved"))
        yield root


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["files", "saved"])
def test_rows_from_any_place_on(folders, name, streaming):
    source = HuggingFace(str(folders / name), None, "train", "text", streaming)
    pieces = list(source.pieces(Place()))
    assert [p.text for p in pieces] == TEXTS
    for i in (0, 20, 48):
        assert [p.text for p in source.pieces(pieces[i].after)] == TEXTS[i + 1 :]
    assert source.size in ((0, 50) if streaming else (50,))


def test_token_files_are_those_of_the_same_documents(folders, tmp_path):
    made = {}
    for name, source in [
        ("hub", HuggingFace(str(folders / "saved"), None, "train", "text", True)),
        ("files", Files([folders / "files" / "train.jsonl"])),
    ]:
        index = token_folder.new(tmp_path / name, Bytes(), {"inputs": source.identity()})
        settings = tokenizing.Settings(0.2, 10**6, 1)
        tokenizing.tokenize(tmp_path / name, index, source, Bytes(), settings)
        made[name] = token_files.load(str(tmp_path / name), "bytes", 0.1, None).sha256
    assert made["hub"] == made["files"]


def test_training_reads_it(folders):
    one = build(
        DataConfig(source="huggingface", path=str(folders / "saved"), packing="best_fit"), 16, 0
    )
    path = str(folders / "files" / "train.jsonl")
    two = build(DataConfig(source="files", path=path, packing="best_fit"), 16, 0)
    assert one.sha256 == two.sha256
    assert (one.batch(7, 8).inputs == two.batch(7, 8).inputs).all()


def test_what_is_not_there_is_named(folders):
    with pytest.raises(BadInput, match="no field 'body' .*text"):
        HuggingFace(str(folders / "saved"), None, "train", "body")
    with pytest.raises(BadInput, match="cannot load split 'test'"):
        HuggingFace(str(folders / "saved"), None, "test", "text")
    with pytest.raises(BadInput, match="cannot load"):
        HuggingFace(str(folders / "none"), None, "train", "text")
    ids = HuggingFace(str(folders / "saved"), None, "train", "id")
    with pytest.raises(BadInput, match="row 2 .* no text in 'id' but int"):
        list(ids.pieces(Place(item=1)))
    with pytest.raises(BadInput, match="needs data.path"):
        build(DataConfig(source="huggingface"), 16, 0)
