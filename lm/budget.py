"""Counting: parameters and FLOPs of a model; tokens, steps and FLOPs of a run.

The one home of these definitions. Imports the config and nothing heavy, because lm/laws uses it.

A multiply-add is 2 FLOPs and the backward pass is twice the forward pass. The output head counts,
the embedding lookup and recomputation do not. Causal attention counts half of the full square.
"""

import math
from dataclasses import dataclass

from lm.config import BUDGETS, Config, ModelConfig
from lm.errors import BadInput

MOST_STEPS = 2**31 - 1


def n_params(m: ModelConfig) -> int:
    """Returns the number of trained values: tied weights once, padding rows not counted."""
    return n_params_non_embedding(m) + _embedding_params(m)


def n_params_non_embedding(m: ModelConfig) -> int:
    """Returns n_params without embeddings (tokens, n-grams, positions) and an untied head."""
    d, bias = m.d_model, int(m.use_bias)
    q, kv = m.n_heads * m.head_dim, m.kv_heads * m.head_dim
    norm = d * (1 + (bias if m.norm == "layernorm" else 0))
    attention = d * (q + 2 * kv) + q * d + bias * (q + 2 * kv + d)
    if m.qk_norm:
        attention += 2 * m.head_dim
    up = 2 if m.gated else 1
    ffn = (up + 1) * d * m.ff_dim + bias * (up * m.ff_dim + d)
    final_norm = norm if m.norm_position == "pre" else 0
    return m.n_layers * (attention + ffn + 2 * norm) + final_norm


def _embedding_params(m: ModelConfig) -> int:
    tables = 1 if m.tie_embeddings else 2
    positions = m.max_length if m.position == "learned" else 0
    ngrams = m.ngram_rows if m.ngram_order > 1 else 0
    return (tables * _vocab(m) + positions + ngrams) * m.d_model


def _vocab(m: ModelConfig) -> int:
    if m.vocab_size is None:
        raise BadInput("model.vocab_size is none: counting needs the tokenizer's size filled in")
    return m.vocab_size


def forward_matmul_flops(m: ModelConfig, length: int, full_attention: bool = False) -> float:
    """Returns FLOPs per token of one forward pass over a sequence of `length` tokens."""
    q, kv = m.n_heads * m.head_dim, m.kv_heads * m.head_dim
    weights = m.d_model * (2 * q + 2 * kv) + (3 if m.gated else 2) * m.d_model * m.ff_dim
    # Scores and weighted values: each of `length` keys meets each query twice; causally, half.
    attention = 2 * q * length * (1.0 if full_attention else 0.5)
    return 2.0 * (m.n_layers * (weights + attention) + m.d_model * _vocab(m))


def flops_per_token(m: ModelConfig, length: int, full_attention: bool = False) -> float:
    """Returns training FLOPs per token, forward and backward."""
    return 3.0 * forward_matmul_flops(m, length, full_attention)


@dataclass(frozen=True)
class Stage:
    """Steps first_step+1 ... last_step use batch_size sequences each."""

    first_step: int
    last_step: int
    batch_size: int


@dataclass(frozen=True)
class Horizon:
    """How long a run is, in every unit. Whole steps: `excess` tokens above what was asked."""

    steps: int
    n_tokens: int
    flops: float
    flops_full_attention: float
    flops_6nd: float
    excess: int
    stages: tuple[Stage, ...]

    def batch_size(self, step: int) -> int:
        """Returns the sequences in optimizer step `step` (from 1)."""
        return next(s.batch_size for s in self.stages if step <= s.last_step)

    def sequences(self, step: int) -> int:
        """Returns the sequences used by the first `step` steps: where the data stands."""
        return sum(
            (min(step, s.last_step) - s.first_step) * s.batch_size
            for s in self.stages
            if step > s.first_step
        )


def horizon(c: Config) -> Horizon:
    """Returns the run's length from whichever budget the config sets.

    Tokens are those of full batches; a batch size from train.batch_growth begins at the first step
    before which at least its number of tokens were trained.
    """
    m, t, length = c.model, c.train, c.length
    if t.steps is not None:
        wanted_tokens, wanted_steps = math.inf, float(t.steps)
    else:
        wanted_steps = math.inf
        if t.n_tokens is not None:
            wanted_tokens = t.n_tokens
        elif t.flops is not None:
            wanted_tokens = _round_up(t.flops / flops_per_token(m, length))
        else:
            assert t.tokens_per_param is not None
            wanted_tokens = _round_up(t.tokens_per_param * n_params(m))
    growth = [(0, t.batch_size), *t.batch_growth]
    stages: list[Stage] = []
    step = tokens = 0
    for i, (_, batch) in enumerate(growth):
        until = min(growth[i + 1][0] if i + 1 < len(growth) else math.inf, wanted_tokens)
        more = min(math.ceil((until - tokens) / (batch * length)) if until < math.inf else math.inf,
                   wanted_steps - step)  # fmt: skip
        if more <= 0:
            continue
        stages.append(Stage(step, step + int(more), batch))
        step, tokens = step + int(more), tokens + int(more) * batch * length
        if step > MOST_STEPS:
            raise _too_long(c, step)
    return Horizon(
        steps=step,
        n_tokens=tokens,
        flops=tokens * flops_per_token(m, length),
        flops_full_attention=tokens * flops_per_token(m, length, full_attention=True),
        flops_6nd=6.0 * n_params(m) * tokens,
        excess=tokens - int(wanted_tokens) if wanted_tokens < math.inf else 0,
        stages=tuple(stages),
    )


def _too_long(c: Config, steps: int) -> BadInput:
    """The error of a run that nobody ends: steps are counted in int32."""
    name = next(b for b in BUDGETS if getattr(c.train, b) is not None)
    return BadInput(
        f"train.{name} {getattr(c.train, name):.6g} makes {steps:.3g} steps of "
        f"{c.train.batch_size} sequences, and a run has at most {MOST_STEPS:,}: ask for less "
        "or raise train.batch_size"
    )


def _round_up(x: float) -> int:
    """Returns the least whole number not below x, a last-bit excess of x = a / b * b forgiven.

    Else the FLOPs that a run reports would, as a budget, be a step longer than that run.
    """
    return math.ceil(x * (1 - 2.0**-50))
