"""Generation with the cache against the model without one."""

import dataclasses
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_model import V, random_params, tiny

from experiments import generate as command
from lm.config import Config, DataConfig, PipelineConfig
from lm.data.tokenizer import Characters
from lm.errors import BadInput
from lm.generate import generate, sample
from lm.model import transformer
from lm.train import checkpoint

WINDOW = 12


def small(**changes):
    m = dataclasses.replace(tiny(max_length=WINDOW, vocab_multiple=16), **changes)
    return transformer.build(m, "float32"), random_params(m)


def uncached_greedy(model, params, text, n_tokens):
    """The stated rule without a cache: the whole window, or its last half each time it is full."""
    start = 0
    # One program for all lengths: what follows the text cannot reach back.
    logits_of = jax.jit(lambda row: model.logits(params, model.hidden(params, row))[0])
    for _ in range(n_tokens):
        if len(text) - start == WINDOW:
            start = len(text) - WINDOW // 2
        row = np.array([text[start:]])
        logits = logits_of(np.pad(row, ((0, 0), (0, WINDOW - row.shape[1]))))
        text = [*text, int(np.argmax(logits[row.shape[1] - 1]))]
    return text[-n_tokens:]


@pytest.mark.parametrize(
    "changes",
    [
        {"n_kv_heads": 2, "qk_norm": True, "ngram_order": 4, "ngram_rows": 16},
        {"position": "learned", "norm_position": "post", "attention": "plain", "use_bias": True},
        {"position": "sinusoidal", "n_kv_heads": 1, "norm": "layernorm", "tie_embeddings": False},
    ],
    ids=lambda c: c.get("position", "rope"),
)
def test_greedy_tokens_and_logits_equal_the_uncached_models(changes):
    model, params = small(**changes)
    prompts = np.random.default_rng(0).integers(0, V, (2, 4))
    got = generate(model, params, prompts, 20, temperature=0.0)  # slides twice
    for prompt, tokens in zip(prompts, got, strict=True):
        assert tokens.tolist() == uncached_greedy(model, params, prompt.tolist(), 20)
    # Logits after a prompt read in two parts, then token by token.
    row = np.random.default_rng(1).integers(0, V, (1, WINDOW))
    whole = jax.jit(model.hidden)(params, row)
    cache, parts, start = model.new_cache(1, WINDOW), [], 0
    extend = jax.jit(model.extend)
    for size in (5, 5, 1, 1):
        hidden, cache = extend(params, row[:, start : start + size], cache, start)
        parts.append(hidden)
        start += size
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=0, atol=2e-5)


@pytest.fixture(scope="module")
def rope_model():
    return small()


def test_padding_is_never_drawn_and_a_seed_repeats_its_text(rope_model):
    model, params = rope_model
    # Padding rows that would win every draw if they took part.
    params = params | {"embedding": params["embedding"].at[V:].set(100.0)}
    prompt = np.zeros((3, 1), int)
    texts = [generate(model, params, prompt, 40, 5.0, seed=seed) for seed in (0, 0, 1)]
    assert all(t.min() >= 0 and t.max() < V for t in texts)
    np.testing.assert_array_equal(texts[0], texts[1])
    assert (texts[0] != texts[2]).any()
    assert len(np.unique(texts[0])) > 3
    assert (texts[0][0] != texts[0][1]).any()  # rows draw on their own


def test_a_longer_text_begins_with_the_shorter_one(rope_model):
    model, params = rope_model
    prompt = np.array([[1, 2, 3]])
    few, many = (generate(model, params, prompt, n, 1.0) for n in (15, 30))
    np.testing.assert_array_equal(few[0], many[0, :15])
    # Where every token is as likely, only the keys speak: no window repeats the one before.
    level = generate(model, jax.tree.map(jnp.zeros_like, params), prompt, 30, 1.0)[0]
    assert level[9:15].tolist() != level[15:21].tolist() != level[21:27].tolist()
    # A prompt longer than the window counts by its last half.
    long = np.random.default_rng(0).integers(0, V, (1, 31))
    np.testing.assert_array_equal(
        generate(model, params, long, 1, 0.0), generate(model, params, long[:, -6:], 1, 0.0)
    )


def test_samples_follow_the_tempered_distribution_of_the_top_tokens():
    logits = np.log([[0.4, 0.3, 0.2, 0.1]]).astype(np.float32)
    many = jnp.tile(logits, (20000, 1))

    def share(temperature, top_k):
        drawn = sample(many, temperature, top_k, jax.random.key(0))
        return np.bincount(drawn, minlength=4) / len(many)

    assert share(1.0, None) == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=0.02)
    squared = np.array([16, 9, 4, 1]) / 30
    assert share(0.5, None) == pytest.approx(squared, abs=0.02)
    assert share(1.0, 2) == pytest.approx([4 / 7, 3 / 7, 0, 0], abs=0.02)
    assert share(0.0, None).tolist() == share(3.0, 1).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    "bad, sentence",
    [
        ({"prompt_BT": np.zeros((1, 0), int)}, "prompt is empty"),
        ({"prompt_BT": np.array([[V]])}, "outside the model's vocabulary of 23"),
        ({"n_tokens": 0}, "n_tokens is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 24}, "top_k is 24"),
        ({"seed": 2**32}, "seed is 4294967296: it must lie between 0 and 4,294,967,295"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_what_cannot_be_generated_is_said(rope_model, bad, sentence):
    arguments = {"prompt_BT": np.array([[0]]), "n_tokens": 1} | bad
    with pytest.raises(BadInput, match=sentence):
        generate(*rope_model, **arguments)


def test_a_prompt_that_is_no_text_is_said(monkeypatch):
    monkeypatch.setattr(command, "WORKDIR", types.SimpleNamespace(value="here"))
    monkeypatch.setattr(command, "PROMPT", types.SimpleNamespace(value="a\udcff"))
    with pytest.raises(BadInput, match="is not UTF-8 text: write it in UTF-8"):
        command.main()


def test_the_command_writes_the_prompt_and_the_text(rope_model, monkeypatch, capsys):
    model, params = rope_model
    alphabet = Characters("abcdefghijklmnopqrstuvw")
    # What an interleaved pipeline left: a checkpoint holds blocks in its parts.
    saved = params | {"blocks": jax.tree.map(lambda w: w[:, None], params["blocks"])}
    config = Config(
        model=model.config,
        data=DataConfig(tokenizer="characters"),
        pipeline=PipelineConfig("interleaved", repeats=2),
    )
    monkeypatch.setattr(
        checkpoint,
        "restore_params",
        lambda workdir: (config, saved, alphabet.spec) if workdir == Path("here") else None,
        raising=False,
    )
    values = {"WORKDIR": "here", "PROMPT": "hello", "N_TOKENS": 9, "TEMPERATURE": 0.0}
    for name, value in (values | {"TOP_K": None, "SEED": 0}).items():
        monkeypatch.setattr(command, name, types.SimpleNamespace(value=value))
    command.main()
    ids = generate(model, params, alphabet.encode(b"hello")[None], 9, 0.0)[0]
    assert capsys.readouterr().out == "hello" + alphabet.decode(ids).decode() + "\n"
