"""What the run does about a step that was not finite or a spike: a line, or its end."""

import math
from typing import Any

from lm.config import OptimConfig
from lm.errors import Diverged
from lm.optim.guard import SPIKE
from lm.progress import say


def check(o: OptimConfig, step: int, values: dict[str, float], standing: Any) -> None:
    """Says that a step was left out and counts it in standing.left_out; raises Diverged where the
    config says stop, or after optim.skip_limit of them in a row."""
    loss, norm = values["loss"], values["grad_norm"]
    verdict = int(values.get("skipped", 0))
    standing.left_out = standing.left_out + 1 if verdict else 0
    found = f"the loss is {loss:.6g} and the gradient norm {norm:.6g} at step {step}"
    if verdict == SPIKE:
        found += (
            f", one of them more than {o.spike:g} deviations above its mean over "
            f"{o.spike_window} steps"
        )
        if o.on_spike == "stop":
            raise Diverged(f"{found} (optim.on_spike is stop): lower optim.learning_rate")
    elif not (math.isfinite(loss) and math.isfinite(norm)) and not verdict:
        raise Diverged(f"{found}: lower optim.learning_rate, or set optim.on_nonfinite=skip")
    if standing.left_out >= o.skip_limit:
        raise Diverged(
            f"{found}: {o.skip_limit} steps in a row were left out (optim.skip_limit): lower "
            "optim.learning_rate"
        )
    if verdict:
        scale = values.get("loss_scale")
        halved = f"; the loss scale was {scale:g}" if scale and verdict != SPIKE else ""
        say(f"skipped: {found}{halved}")
