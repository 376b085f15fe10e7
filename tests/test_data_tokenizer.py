"""Tokenizers: round trips, fingerprints, and ids that do not fit."""

import json

import numpy as np
import pytest

from lm.data import token_folder, tokenizer_json
from lm.data.token_ids import as_tokens, token_dtype
from lm.data.tokenizer import (
    TOKENIZERS,
    Bytes,
    Characters,
    Symbols,
    fingerprint,
    from_spec,
)
from lm.errors import BadInput

TEXT = "Zażółć gęślą jaźń, 日本語 😀\n\tand plain words.\r\n"
MADE = [Bytes(), TOKENIZERS["characters"]([TEXT.encode()]), Symbols(1000)]


@pytest.mark.parametrize("tokenizer", MADE, ids=lambda t: type(t).__name__)
def test_decode_undoes_encode_and_ids_are_in_the_vocabulary(tokenizer):
    text = b"0 999 17" if isinstance(tokenizer, Symbols) else TEXT.encode()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids.dtype == token_dtype(tokenizer.vocab_size)
    assert ids.ndim == 1 and ids.max() < tokenizer.vocab_size


@pytest.mark.parametrize("tokenizer", MADE, ids=lambda t: type(t).__name__)
def test_spec_is_plain_data_that_rebuilds_the_tokenizer(tokenizer):
    again = from_spec(json.loads(json.dumps(tokenizer.spec)))
    assert again == tokenizer
    assert fingerprint(again) == fingerprint(tokenizer)


def test_fingerprints_differ_where_ids_would():
    others = [*MADE, Characters("ab"), Characters("abc"), Symbols(256)]
    assert len({fingerprint(t) for t in others}) == len(others)


def test_characters_are_numbered_by_code_point():
    tokenizer = TOKENIZERS["characters"]([b"banana", "é".encode()])
    assert tokenizer == Characters("abné")
    assert tokenizer.encode("néa".encode()).tolist() == [2, 3, 0]


@pytest.mark.parametrize("text", ["abcz", "abĀ", "ab😀", "a`b"])  # above, far above, between
def test_unknown_character_is_named(text):
    with pytest.raises(BadInput, match=f"{text.strip('abc')!r}"):
        Characters("abc").encode(text.encode())


def test_characters_must_be_sorted_and_distinct():
    for wrong in ("", "ba", "aab"):
        with pytest.raises(BadInput, match="sorted"):
            Characters(wrong)


@pytest.mark.parametrize(
    "vocab_size,dtype",
    [(2, "uint8"), (256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")],
)
def test_type_follows_the_vocabulary_and_no_id_wraps(vocab_size, dtype):
    last = as_tokens(np.array([0, vocab_size - 1]), vocab_size)
    assert last.dtype == dtype and last.tolist() == [0, vocab_size - 1]
    for bad in (vocab_size, -1, 2**40):
        with pytest.raises(BadInput, match=f"{bad} .* {vocab_size}"):
            as_tokens(np.array([0, bad]), vocab_size)


def test_vocabulary_beyond_32_bits_is_refused():
    assert token_dtype(2**32) == "uint32"
    with pytest.raises(BadInput, match="4294967297"):
        token_dtype(2**32 + 1)


def test_decoding_foreign_ids_is_refused():
    for tokenizer in MADE:
        with pytest.raises(BadInput, match="another tokenizer"):
            tokenizer.decode(np.array([70_000]))


def test_a_tokenizer_that_is_in_the_folder_is_left_as_it_is(tmp_path):
    text = "a few words, and a few words more" * 9
    bpe, other = (tokenizer_json.train_bpe([text], size) for size in (258, 259))
    config = tmp_path / "tokenizer_config.json"
    tokenizer_json.save(bpe, tmp_path)
    config.write_text('{"eos_token": {"content": "<|endoftext|>"}, "model_max_length": 512}')
    before = config.read_text()
    token_folder.new(tmp_path, tokenizer_json.load(str(tmp_path)), {})
    assert config.read_text() == before
    with pytest.raises(BadInput, match="tokenizer.json is another tokenizer"):
        token_folder.new(tmp_path, other, {})
    assert config.read_text() == before and tokenizer_json.load(str(tmp_path)) == bpe
