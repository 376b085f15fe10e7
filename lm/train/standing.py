"""What the host carries from step to step and a checkpoint keeps, and the result it comes to."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lm import budget
from lm.config import Config
from lm.errors import BadInput, Diverged
from lm.process import peak_memory_bytes
from lm.train.workdir import read_json

STEPS_ABOVE_FIRST = 100  # so many in a row above the first step's loss: diverged
STATUSES = ("finished", "diverged", "stopped")
COUNTS = ("n_params", "n_tokens", "flops", "flops_6nd")


@dataclasses.dataclass
class Standing:
    """Where a run stands, over all restarts."""

    n_tokens: int = 0  # valid target tokens
    seconds: float = 0.0
    first_loss: float = math.nan  # of the first step that counted
    left_out: int = 0  # steps in a row that were skipped (lm/optim/guard.py)
    above_first: int = 0  # steps in a row with a loss above the first
    tail_sum: float = 0.0  # of the losses of the last steps
    tail_count: int = 0
    spent: dict[str, float] = dataclasses.field(default_factory=dict)  # lm/train/goodput.py
    eval_step: int = 0  # of the newest evaluation
    eval_loss: float | None = None
    eval_bits_per_byte: float | None = None
    eval_loss_by_source: dict[str, float] = dataclasses.field(default_factory=dict)

    def compare(self, step: int, loss: float) -> None:
        """Takes in the loss of a step that counted; raises Diverged after too many above the
        first."""
        if math.isnan(self.first_loss):
            self.first_loss = loss
        self.above_first = self.above_first + 1 if loss > self.first_loss else 0
        if self.above_first >= STEPS_ABOVE_FIRST:
            raise Diverged(
                f"the loss was above the first step's {self.first_loss:.4f} for "
                f"{STEPS_ABOVE_FIRST} steps up to step {step}: lower optim.learning_rate"
            )


def result(
    c: Config, s: Standing, run_id: str, steps: int, status: str, mfu: Callable
) -> dict[str, Any]:
    """Returns what is in result.json. mfu: from places per second; None where it is not known.

    FLOPs count every place of a row, as the budget does: padding of packed rows is computed too,
    while n_tokens are targets.
    """
    m = c.model
    evaluated = status == "finished"
    rate = s.n_tokens / s.seconds
    places = budget.horizon(c).sequences(steps) * c.length
    return {
        "run_id": run_id,
        "n_params": budget.n_params(m),
        "n_params_non_embedding": budget.n_params_non_embedding(m),
        "n_tokens": s.n_tokens,
        "flops": places * budget.flops_per_token(m, c.length),
        "flops_full_attention": places * budget.flops_per_token(m, c.length, True),
        "flops_6nd": 6.0 * budget.n_params(m) * s.n_tokens,
        "train_loss": finite(s.tail_sum / s.tail_count) if s.tail_count else None,
        "eval_loss": s.eval_loss if evaluated else None,
        "eval_bits_per_byte": s.eval_bits_per_byte if evaluated else None,
        **({"eval_loss_by_source": s.eval_loss_by_source} if s.eval_loss_by_source else {}),
        "steps": steps,
        "seconds": s.seconds,
        "tokens_per_second": rate,
        "mfu": mfu(places / s.seconds),
        "peak_memory_bytes": peak_memory_bytes(),
        "status": status,
    }


def read_result(path: Path) -> dict[str, Any]:
    """Returns a result.json; raises BadInput where it is none."""
    found = read_json(path)
    whole = found.get("status") in STATUSES and found.keys() >= {"eval_loss", "train_loss"}
    whole = whole and all(_is_number(found.get(k)) for k in COUNTS)
    if not whole or (found["status"] == "finished" and not _is_number(found.get("eval_loss"))):
        raise BadInput(
            f"{path} is damaged: remove it and run the same command again, the run goes on from "
            "its newest checkpoint"
        )
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < math.inf


def finite(value: float) -> float | None:
    """Returns the value, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None
