"""Training from token files: packed, mixed, resumed, with the loss of each source."""

import json
import math

import pytest

from lm.config import default_config, freeze
from lm.data import token_folder, tokenizing
from lm.data.inputs import Files
from lm.data.tokenizer import Bytes
from lm.errors import BadInput
from lm.train.run import train


def tokens(folder, name: str, words: str):
    path = folder / f"{name}.jsonl"
    lines = [json.dumps({"text": f"{words} {i} {words[: i % 9]}"}) for i in range(80)]
    path.write_text("\n".join(lines))
    index = token_folder.new(folder / name, Bytes(), {})
    tokenizing.tokenize(
        folder / name, index, Files([path]), Bytes(), tokenizing.Settings(0.2, 10**6, 1)
    )
    return str(folder / name)


def config(mixture):
    c = default_config()
    m = c.model
    m.d_model, m.n_layers, m.n_heads, m.d_ff, m.max_length = 16, 1, 2, 16, 24
    c.data.source, c.data.mixture, c.data.packing, c.data.workers = (
        "mixture",
        mixture,
        "best_fit",
        2,
    )
    c.train.batch_size, c.train.steps, c.log.every = 8, 12, 1
    c.optim.learning_rate, c.checkpoint.every, c.eval.every = 1e-2, 6, 6
    return freeze(c)


def test_a_packed_mixture_of_token_folders(tmp_path, capsys):
    mixture = (
        (tokens(tmp_path, "easy", "aaaaaaaaaaaa"), 3),
        (tokens(tmp_path, "hard", "qzxjkvbw"), 1),
    )
    c = config(mixture)
    result = train(c, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    losses = [r["loss"] for r in rows if "loss" in r]
    assert losses[-1] < losses[0]
    evaluations = [r for r in rows if "eval_loss" in r]
    assert len(evaluations) == 2
    by_source = result["eval_loss_by_source"]
    assert evaluations[-1]["eval_loss_by_source"] == by_source
    assert by_source["easy"] < by_source["hard"]
    from lm.data.build import build

    parts = build(c.data, c.length, c.seed).parts
    drawn = {"easy": 72, "hard": 24}  # of 12 x 8 sequences, as 3 to 1
    passed = (f"{name} {n / parts[name].n_train_sequences:.2f}" for name, n in drawn.items())
    assert f"epochs: {', '.join(passed)}\n" in capsys.readouterr().err
    n = {name: part.n_validation_tokens for name, part in parts.items()}
    mean = sum(n[name] * by_source[name] for name in n) / sum(n.values())
    assert math.isclose(result["eval_loss"], mean, rel_tol=1e-12)
    # n_tokens counts targets, not the empty places of packed rows.
    assert 0.5 * 12 * 8 * 24 < result["n_tokens"] < 12 * 8 * 24

    (tmp_path / "run" / "result.json").unlink()
    folder = tmp_path / "easy"
    index = token_folder.read_index(folder)
    index.splits["train"][0].sha256 = "other"
    token_folder.write_index(folder, index)
    with pytest.raises(BadInput, match="the corpus has changed"):
        train(c, tmp_path / "run")
