"""The answer at the head of a report: the best run of a budget, with intervals."""

from collections.abc import Callable, Mapping
from typing import Any

from lm.laws import report_page as p


def answer(plan: Mapping[str, Any] | None, largest: float | None) -> str:
    """N*, D*, tokens per parameter and loss for the budget, with 80 % intervals.

    largest: training FLOPs of the largest fitted run.
    """
    if plan is None:
        return p.missing(
            "There is no plan.json, so there is no answer yet: run experiments.plan "
            "--law=DIR/law.json --flops=BUDGET --out=DIR"
        )
    flops = plan["flops"]["value"]
    asked = "compute_optimal" not in plan
    served = "served_tokens" in plan
    training = plan["flops_training"]["value"] if served else flops
    use = " on training and serving" if served else ""
    head = (
        f"To spend {p.power(flops)} FLOPs{use} best, train "
        f"{p.count(plan['n']['value'])} parameters on {p.count(plan['d']['value'])} tokens."
        if asked else
        f"{p.count(plan['n']['value'])} parameters trained on {p.count(plan['d']['value'])} "
        f"tokens, {p.power(flops)} FLOPs{use}."
    )  # fmt: skip
    star = "*" if asked else ""
    boxes = [
        (f"budget, {'training and serving' if served else 'training'} FLOPs", p.power(flops),
         _beyond(largest, training)),
        (f"parameters N{star}", p.count(plan["n"]["value"]), interval_of(plan["n"], p.count)),
        (f"training tokens D{star}", p.count(plan["d"]["value"]), interval_of(plan["d"], p.count)),
        ("tokens per parameter", p.count(plan["tokens_per_param"]["value"]),
         interval_of(plan["tokens_per_param"], p.count)),
        ("loss, nats per token", p.nats(plan["loss"]["value"]), interval_of(plan["loss"], p.nats)),
    ]  # fmt: skip
    body = f'<p class="answer">{head}</p>' + p.cards(boxes) + _lifetime(plan) + _shape(plan)
    counted = {"6nd": "6 N D", "exact": "the exact count of the shapes"}.get(
        str(plan.get("convention")), str(plan.get("convention"))
    )
    without = "without" if "non" in str(plan.get("n_counts")) else "with"
    body += (
        f'<p class="soft">FLOPs are {p.text(counted)}; N counts parameters {without} embeddings. '
        "Intervals hold the middle 80 % of the refits of resampled tables.</p>"
    )
    return body + p.notes(plan.get("warnings") or [])


def _beyond(largest: float | None, flops: float | None) -> str:
    if not largest or flops is None or not p.known(largest):
        return "&nbsp;"
    return f"{p.count(flops / largest)} times the largest fitted run"


def _lifetime(plan: Mapping[str, Any]) -> str:
    """What the tokens to be served and the text there is mean for the answer."""
    said = ""
    if "served_tokens" in plan:
        train, serve = (p.power(plan[k]["value"]) for k in ("flops_training", "flops_serving"))
        said += (
            f"<p>Training takes {train} FLOPs of them, serving "
            f"{p.count(plan['served_tokens'])} tokens {serve}.</p>"
        )
    if "unique_tokens" in plan:
        said += (
            f"<p>There are {p.count(plan['unique_tokens'])} different tokens to train on: "
            f"{p.count(plan['epochs']['value'])} epochs.</p>"
        )
    return said


def interval_of(q: Mapping[str, Any], form: Callable[[Any], str]) -> str:
    """The 80 % interval of a quantity as words."""
    interval = q.get("interval_80")
    if not interval:
        return "no interval"
    return f"80 %: {form(interval[0])} to {form(interval[1])}"


def _shape(plan: Mapping[str, Any]) -> str:
    s = plan.get("shape")
    if not s:
        return ""
    loss = s.get("loss", {}).get("value")
    expected = f", expected loss {p.nats(loss)}" if p.known(loss) else ""
    return (
        f"<p>Nearest model that can be built: {s['n_layers']} layers, width {s['d_model']}, "
        f"{s['n_heads']} heads, FFN {s['d_ff']}: {s['n_params']:,} parameters, trained on "
        f"{s['n_tokens']:,} tokens{expected}.</p>"
    )
