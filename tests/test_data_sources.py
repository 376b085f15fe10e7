"""Text sources: what is read, how it is split, and what the digest sees."""

import sysconfig
import time
from pathlib import Path

import numpy as np
import pytest

from lm.config import DataConfig
from lm.data import files, python_library
from lm.data.build import build
from lm.data.corpus import Document, digest, read
from lm.errors import BadInput

SHAKESPEARE = Path(__file__).parents[2] / "shared" / "data" / "tinyshakespeare.txt"


@pytest.fixture(scope="module")
def library():
    return python_library.load()


def test_library_is_ordered_utf8_text_without_tests(library):
    root = Path(sysconfig.get_path("stdlib"))
    for split in (library.train, library.validation):
        names = [d.name for d in split]
        assert names == sorted(set(names))
        for document in split:
            parts = document.name.split("/")
            assert not {"test", "tests", "idle_test", "site-packages"} & set(parts)
            assert document.name.endswith(".py") and document.text
            document.text.decode()
    assert "argparse.py" in {d.name for d in library.train + library.validation}
    some = library.train[100]
    assert some.text == (root / some.name).read_bytes()
    assert sum(len(d.text) for d in library.train) > 5e6


def test_library_splits_share_no_file_and_validation_is_256_kib_or_a_bit_more(library):
    assert not {d.name for d in library.train} & {d.name for d in library.validation}
    size = sum(len(d.text) for d in library.validation)
    assert 256 * 1024 <= size < 256 * 1024 + python_library.LARGEST_HELD_OUT
    assert len(library.validation) >= 5


def fake_library(root: Path, extra: dict[str, bytes] | None = None) -> Path:
    rng = np.random.default_rng(0)
    texts = {f"m{i}.py": rng.integers(97, 123, 9000, np.uint8).tobytes() for i in range(60)}
    texts |= {
        "package/a.py": b"x = 1\n",
        "package/empty.py": b"",
        "package/notes.txt": b"no",
        "package/latin.py": b"# caf\xe9\n",
        "package/tests/b.py": b"no",
        "package/idle_test/b.py": b"no",
        "test/c.py": b"no",
        "site-packages/d.py": b"no",
        "config-3.11-x/python-config.py": b"no",
        "_sysconfigdata__linux.py": b"no",
        "large.py": b"y" * 200_000,
    }
    for name, text in (texts | (extra or {})).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text)
    return root


def test_library_rules_on_a_made_up_folder(tmp_path):
    corpus = python_library.load(fake_library(tmp_path))
    train, held_out = ({d.name for d in s} for s in (corpus.train, corpus.validation))
    assert len(held_out - {"package/a.py"}) == -(-256 * 1024 // 9000)
    assert train | held_out == {f"m{i}.py" for i in range(60)} | {"package/a.py", "large.py"}
    assert "large.py" in train


def test_library_split_depends_on_paths_not_on_contents_or_neighbours(tmp_path):
    one = python_library.load(fake_library(tmp_path / "one"))
    changed = {f"m{i}.py": b"z" * 9000 for i in range(60)}
    other = python_library.load(fake_library(tmp_path / "two", changed))
    assert [d.name for d in one.validation] == [d.name for d in other.validation]
    assert one.sha256 != other.sha256
    # A new file moves at most as much in or out as it is long.
    more = python_library.load(fake_library(tmp_path / "three", {"new.py": b"w" * 9000}))
    moved = {d.name for d in one.validation} ^ {d.name for d in more.validation}
    assert len(moved - {"new.py"}) <= 1


def test_library_that_is_not_on_disk_is_a_plain_error(tmp_path):
    with pytest.raises(BadInput, match="files"):
        python_library.load(tmp_path / "absent")
    (tmp_path / "only.py").write_text("x = 1\n")
    with pytest.raises(BadInput, match="found 1 files"):
        python_library.load(tmp_path)


def test_library_reads_quickly_and_repeats_itself():
    one = build(DataConfig(), 128, 0)  # warms the file cache
    start = time.process_time()
    two = build(DataConfig(), 128, 0)
    assert time.process_time() - start < 1
    assert one.sha256 == two.sha256
    assert (one.batch(5, 4).inputs == two.batch(5, 4).inputs).all()
    assert one.vocab_size == 256 and one.entropy_rate is None
    assert one.validation_bytes == one.n_validation_tokens
    assert sum(float(b.weights.sum()) for b in one.validation(64)) == one.n_validation_tokens


def test_digest_sees_names_boundaries_and_order():
    a, b = Document("a", b"12"), Document("b", b"3")
    variants = [[a, b], [b, a], [a], [Document("a", b"1"), Document("b", b"23")]]
    variants += [[Document("a", b"123")], [Document("c", b"12"), b], [Document("a1", b"2"), b]]
    assert len({digest(v) for v in variants}) == len(variants)
    assert digest([a, b]) == digest([Document("a", b"12"), Document("b", b"3")])


def write(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_bytes(text.encode())
    return folder


def joined(split) -> str:
    return b"".join(d.text for d in split).decode()


@pytest.mark.parametrize("fraction,n_train", [(0.1, 90), (0.9, 10), (0.3, 70), (0.005, 99)])
def test_files_split_by_characters_exactly(tmp_path, fraction, n_train):
    text = ("aé日😀b" * 20)[:100]
    # However the text lies in files, the split is that of the whole.
    for cuts in ([100], [30, 100], [n_train, 100], [1, 2, 95, 100], [0, 100]):
        folder = tmp_path / "-".join(map(str, cuts))
        pieces = [text[i:j] for i, j in zip([0, *cuts], cuts, strict=False)]
        write(folder, **{f"{i:02d}": piece for i, piece in enumerate(pieces)})
        corpus = files.load(str(folder / "*.txt"), fraction)
        assert joined(corpus.train) == text[:n_train]
        assert joined(corpus.validation) == text[n_train:]
        assert all(d.text for d in corpus.train + corpus.validation)


def test_files_are_sorted_and_their_digest_moves_with_them(tmp_path):
    one = files.load(str(write(tmp_path / "x", b="22", a="11", c="33") / "*.txt"), 0.5)
    other = files.load(str(write(tmp_path / "y", a="11", b="22", c="33") / "*.txt"), 0.5)
    assert joined(one.train) + joined(one.validation) == "112233"
    assert one.sha256 == other.sha256
    third = files.load(str(write(tmp_path / "z", a="112", b="2", c="33") / "*.txt"), 0.5)
    assert third.sha256 != one.sha256


def test_files_in_folders_below_and_relative_paths(tmp_path, monkeypatch):
    write(tmp_path, a="11", d="44")
    write(tmp_path / "below", b="22")
    everything = files.load(str(tmp_path / "**" / "*.txt"), 0.5)
    assert joined(everything.train) + joined(everything.validation) == "112244"
    monkeypatch.chdir(tmp_path)
    assert files.load("**/*.txt", 0.5).sha256 == everything.sha256
    assert joined(files.load("a.txt", 0.5).train) == "1"


def test_newlines_are_kept(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\rthree\n\n")
    assert joined(files.load(str(tmp_path / "a.txt"), 0.25).train) == "one\r\ntwo\rthr"


def test_files_that_cannot_be_used_are_named(tmp_path):
    for path, words in [
        (None, "data.path"),
        (str(tmp_path / "absent.txt"), "absent.txt matches no file"),
        (str(tmp_path / "*.none"), "matches no file"),
        (str(tmp_path), "folder"),
    ]:
        with pytest.raises(BadInput, match=words):
            files.load(path, 0.1)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(BadInput, match="latin.txt is not UTF-8"):
        files.load(str(tmp_path / "*.txt"), 0.1)


def test_unreadable_file_is_named(tmp_path):
    with pytest.raises(BadInput, match=rf"cannot read {tmp_path} \(.+\)"):
        read(tmp_path)  # a folder, as root could read a file without permissions


def characters(path: Path, length: int):
    settings = DataConfig(source="files", path=str(path), tokenizer="characters")
    return build(settings, length, 0)


def check_characters(text: str, path: Path):
    """Every property of the shakespeare_char data, for any text."""
    ds = characters(path, 64)
    n_train = len(text) * 9 // 10
    ids = {c: i for i, c in enumerate(sorted(set(text)))}
    assert ds.vocab_size == len(ids)
    assert ds.n_train_tokens == n_train
    assert ds.n_validation_tokens == len(text) - n_train - 1
    assert ds.validation_bytes == len(text[n_train + 1 :].encode())
    expected = [ids[c] for c in text[n_train + 1 :]]
    got = np.concatenate([b.targets[b.weights == 1] for b in ds.validation(12)])
    assert got.tolist() == expected
    first = np.sort([ds.batch(i, 1).inputs[0, 0] for i in range(50)])
    assert first.max() < ds.vocab_size
    row = ds.batch(0, 1)
    assert ds.tokenizer.decode(row.inputs[0]).decode() in text[:n_train]


def test_tinyshakespeare_has_65_characters():
    if not SHAKESPEARE.exists():
        pytest.skip(f"{SHAKESPEARE} is not there")
    text = SHAKESPEARE.read_text()
    check_characters(text, SHAKESPEARE)
    assert characters(SHAKESPEARE, 64).vocab_size == 65


def test_a_generated_play_has_its_characters(tmp_path):
    alphabet = "\n !$&',-.3:;?éABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz日"
    text = "".join(np.random.default_rng(0).choice(list(alphabet), 20_003))
    (tmp_path / "play.txt").write_bytes(text.encode())
    check_characters(text, tmp_path / "play.txt")


def test_a_character_that_only_validation_has_is_in_the_vocabulary(tmp_path):
    (tmp_path / "a.txt").write_bytes(("ab" * 90 + "aé" * 10).encode())
    ds = characters(tmp_path / "a.txt", 8)
    assert ds.vocab_size == 3
    assert max(b.targets.max() for b in ds.validation(2)) == 2


def test_corpus_shorter_than_the_context_names_both_numbers(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 100)
    with pytest.raises(BadInput, match="10 tokens, fewer than the 65"):
        characters(tmp_path / "a.txt", 64)
    with pytest.raises(BadInput, match="training split has 90 tokens, fewer than the 129"):
        characters(tmp_path / "a.txt", 128)


@pytest.mark.parametrize(
    "settings",
    [
        {"path": "my.txt"},
        {"source": "markov", "path": "my.txt"},
        {"source": "files", "path": "my.txt", "mixture": (("a", 1), ("b", 1))},
        {"source": "files", "path": "my.txt", "validation_path": "held_out.txt"},
        {"source": "tokens", "path": "tokens", "subset": "en"},
        {"source": "files", "path": "my.txt", "split": "test"},
        {"source": "huggingface", "path": "x", "separator": "--"},
        {"source": "tokens", "path": "tokens", "text_field": "body"},
        {"validation_fraction": 0.2},
    ],
)
def test_text_named_to_a_source_that_reads_another_is_refused(settings):
    with pytest.raises(BadInput, match=rf"data\.{list(settings)[-1]} is set and data.source is"):
        build(DataConfig(**settings), 16, 0)
