"""Counting against parameter trees, hand counts, XLA and published models."""

import itertools
import math
import random

import jax
import numpy as np
import pytest
from test_model import CASES, TINY, V, config_of, tiny

from experiments.configs import llama2_7b, llama2_70b
from lm import budget
from lm.config import Config, ModelConfig, TrainConfig, freeze
from lm.errors import BadInput
from lm.model import transformer
from lm.model.spec import flatten
from lm.train import state as train_state
from lm.train.standing import Standing, result

# Parameters

OUTER = ("embedding", "ngrams", "head", "positions")


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(str(v) for v in c.values()))
def test_counts_equal_the_parameter_tree(case):
    m, _ = config_of(case)
    sizes = {name: math.prod(row.shape) for name, row in flatten(transformer.table(m)).items()}
    padding = (m.padded_vocab - V) * m.d_model * (1 if m.tie_embeddings else 2)
    assert budget.n_params(m) == sum(sizes.values()) - padding
    inner = {n: s for n, s in sizes.items() if n not in OUTER}
    assert budget.n_params_non_embedding(m) == sum(inner.values())


def test_published_models():
    seven, seventy = (freeze(f.get_config()).model for f in (llama2_7b, llama2_70b))
    assert budget.n_params(seven) == 6_738_415_616
    assert budget.n_params_non_embedding(seven) == 6_476_271_616
    assert budget.n_params(seventy) == 68_976_648_192


def test_counting_without_a_vocabulary_is_refused():
    with pytest.raises(BadInput, match="vocab_size is none"):
        budget.n_params(tiny(vocab_size=None))


# FLOPs


@pytest.mark.parametrize(
    "changes, d_ff_matrices",
    [({}, 3), ({"n_kv_heads": 2, "d_head": 8}, 3), ({"ffn": "relu", "d_ff": 40, "n_layers": 3}, 2)],
)
def test_flops_equal_a_count_by_hand(changes, d_ff_matrices):
    m, t = tiny(**changes), 18
    d, h, n, k = m.d_model, m.head_dim, m.n_heads, m.kv_heads
    per_layer = 2 * t * d * n * h + 2 * (2 * t * d * k * h)  # queries; keys and values
    per_layer += 2 * (2 * n * t * t * h)  # scores and weighted values, the full square
    per_layer += 2 * t * n * h * d  # output
    per_layer += d_ff_matrices * 2 * t * d * m.ff_dim
    forward = m.n_layers * per_layer + 2 * t * d * V
    assert budget.forward_matmul_flops(m, t, full_attention=True) * t == forward
    assert budget.flops_per_token(m, t, full_attention=True) * t == 3 * forward
    half = m.n_layers * 2 * n * t * t * h
    assert budget.flops_per_token(m, t) * t == 3 * (forward - half)


@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 2}, {"ffn": "relu", "d_head": 32}])
def test_xla_counts_the_same_products_in_an_unrolled_model(changes):
    # Wide enough that the products dominate: XLA also counts norms, softmax and activations.
    t = 64
    m = tiny(attention="plain", max_length=t, **({"d_model": 128, "d_head": 64} | changes))
    model = transformer.build(m, "float32")
    params = train_state.shapes(model.table)

    def forward(params, tokens):
        return model.logits(params, model.hidden(params, tokens))

    tokens = jax.ShapeDtypeStruct((2, t), np.int32)
    analysis = jax.jit(forward).lower(params, tokens).compile().cost_analysis()
    counted = analysis["flops"] if analysis else math.nan
    ours = budget.forward_matmul_flops(m, t, full_attention=True) * 2 * t
    assert 1.0 <= counted / ours < 1.06


def test_flops_near_6nd_for_a_wide_model_and_the_gap_is_attention():
    m = freeze(llama2_7b.get_config()).model
    inner = budget.n_params(m) - 32000 * 4096  # the input embedding multiplies nothing
    attention = budget.flops_per_token(m, 4096) - budget.flops_per_token(m, 0)
    norms = (2 * 32 + 1) * 4096
    assert budget.flops_per_token(m, 4096) == 6 * (inner - norms) + attention
    assert attention == 32 * 6 * 4096 * 4096
    full = budget.flops_per_token(m, 4096, full_attention=True)
    assert full - budget.flops_per_token(m, 4096) == attention


# Horizons


def run(model: ModelConfig = TINY, **train) -> Config:
    return Config(model, train=TrainConfig(**train))


def test_a_horizon_says_every_unit():
    h = budget.horizon(run(steps=40, batch_size=8))
    assert (h.steps, h.n_tokens, h.excess) == (40, 40 * 8 * 20, 0)
    assert h.flops == h.n_tokens * budget.flops_per_token(TINY, 20)
    assert h.flops_full_attention == h.n_tokens * budget.flops_per_token(TINY, 20, True)
    assert h.flops_6nd == 6 * budget.n_params(TINY) * h.n_tokens


def test_budgets_round_up_to_whole_steps_and_report_the_excess():
    step_tokens = 8 * 20
    h = budget.horizon(run(n_tokens=10 * step_tokens + 1, batch_size=8))
    assert (h.steps, h.n_tokens, h.excess) == (11, 11 * step_tokens, step_tokens - 1)
    per_token = budget.flops_per_token(TINY, 20)
    h = budget.horizon(run(flops=per_token * (step_tokens + 0.5), batch_size=8))
    assert (h.steps, h.excess) == (2, step_tokens - 1)
    h = budget.horizon(run(tokens_per_param=2.5, batch_size=8))
    wanted = math.ceil(2.5 * budget.n_params(TINY))
    assert h.n_tokens - h.excess == wanted and 0 <= h.excess < step_tokens


def test_budgets_turn_into_each_other_and_back():
    # Large numbers too, where a product and its quotient no longer cancel to the last bit.
    rng = random.Random(0)
    large = freeze(llama2_7b.get_config()).model
    for trial in range(3000):
        model = rng.choice([TINY, large])
        c = run(model, steps=int(10 ** rng.uniform(0, 7)), batch_size=rng.randrange(1, 2000))
        h = budget.horizon(c)
        same = {
            "n_tokens": h.n_tokens,
            "flops": h.flops,
            "tokens_per_param": h.n_tokens / budget.n_params(model),
        }
        for name, value in same.items():
            again = run(model, batch_size=c.train.batch_size, **{name: value})
            assert budget.horizon(again) == h, (trial, name)


GROWTH = ((1000, 4), (1001, 8), (5000, 16))


@pytest.mark.parametrize(
    "length_of_run",
    [{"steps": 1}, {"steps": 30}, {"n_tokens": 999}, {"n_tokens": 4001}, {"n_tokens": 60_000}],
    ids=str,
)
def test_a_growing_batch_trains_each_token_once_and_grows_on_time(length_of_run):
    h = budget.horizon(run(batch_size=2, batch_growth=GROWTH, **length_of_run))
    # Step by step, as a trainer without any plan would.
    tokens = sequences = 0
    schedule = ((0, 2), *GROWTH)
    for step in range(1, h.steps + 1):
        assert h.sequences(step - 1) == sequences
        assert tokens < length_of_run.get("n_tokens", math.inf)
        size = [b for at, b in schedule if tokens >= at][-1]
        assert h.batch_size(step) == size
        sequences, tokens = sequences + size, tokens + size * 20
    assert (h.sequences(h.steps), h.n_tokens) == (sequences, tokens)
    assert h.steps == length_of_run.get("steps", h.steps)
    assert h.n_tokens >= length_of_run.get("n_tokens", 0)
    assert h.stages[0].first_step == 0 and h.stages[-1].last_step == h.steps
    for a, b in itertools.pairwise(h.stages):
        assert a.last_step == b.first_step and a.batch_size < b.batch_size


@pytest.mark.parametrize("targets", [1.0, 0.9])
def test_a_run_spends_what_its_budget_counts_also_where_rows_are_padded(targets):
    c = Config(model=tiny(), train=TrainConfig(steps=7, batch_size=4))
    h = budget.horizon(c)
    stands = Standing(n_tokens=round(targets * h.n_tokens), seconds=2.0)
    found = result(c, stands, "id", 7, "stopped", lambda places: places)
    assert found["flops"] == h.flops and found["mfu"] == h.n_tokens / 2
    assert found["flops_full_attention"] == h.flops_full_attention
    assert (
        found["n_tokens"] == stands.n_tokens and found["tokens_per_second"] == stands.n_tokens / 2
    )
