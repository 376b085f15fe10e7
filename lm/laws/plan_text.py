"""A plan as lines of text for a terminal. Reads only the dict of lm/laws/plan.py."""

import math
from typing import Any

COUNTED = {
    "6nd": "6 N D to train, 2 N for a served token",
    "exact": "exact for shapes of this family, head and causal attention included",
}
N_COUNTS = {
    "n_params": "all parameters",
    "n_params_non_embedding": "parameters without embeddings",
}


def plan_text(plan: dict[str, Any]) -> str:
    """Returns the table that experiments.plan prints: quantities with intervals, then remarks."""
    point = "compute_optimal" in plan
    star = "" if point else "*"
    lines = [
        f"law    {plan['law']}: {plan['source']}",
        f"       {', '.join(f'{k} {v:.8g}' for k, v in plan['constants'].items())}",
        f"FLOPs  {COUNTED[plan['convention']]} (convention {plan['convention']})",
        f"N      counts {N_COUNTS[plan['n_counts']]}",
        "",
        _row("", "value", "80 % interval"),
        _quantity("FLOPs" + (", training and serving" if "served_tokens" in plan else ""), "flops",
                  plan, flops),
    ]  # fmt: skip
    if "served_tokens" in plan:
        lines += [
            _quantity("  of which training", "flops_training", plan, flops),
            _quantity(f"  serving {amount(plan['served_tokens'])} tokens", "flops_serving", plan,
                      flops),
        ]  # fmt: skip
    lines += [
        _quantity(f"N{star}", "n", plan, amount),
        _quantity(f"D{star}", "d", plan, amount),
        _quantity("tokens per parameter", "tokens_per_param", plan, amount),
    ]
    if "epochs" in plan:
        label = f"epochs of {amount(plan['unique_tokens'])} tokens"
        lines.append(_quantity(label, "epochs", plan, amount))
    lines += [_quantity("loss", "loss", plan, nats), ""]
    if plan["exponents"]:
        a, b = (plan["exponents"][k] for k in "ab")
        whole = "N*" if plan["method"] in ("isoflop", "envelope") else "Under 6 N D, N*"
        lines.append(
            f"{whole} grows as C^{a['value']:.4f}{_spread(a, digits)} and D* as "
            f"C^{b['value']:.4f}{_spread(b, digits)}."
        )
    for part in (_doublings, _off, _instead, _served, _repeated, _shape, _runs):
        lines += part(plan)
    lines += [f"Note: {w}." for w in plan["warnings"]]
    return "\n".join(lines)


def amount(x: float) -> str:
    """Returns a number with three or four digits; from 1e4 on the exponent is in threes: 32.2e9."""
    if not math.isfinite(x) or x == 0:
        return f"{x:g}"
    if 1e-4 <= abs(float(f"{x:.4g}")) < 1e4:
        return f"{x:.4g}"
    rounded = float(f"{x:.3g}")
    exponent = 3 * math.floor(math.log10(abs(rounded)) / 3 + 1e-9)
    return f"{rounded / 10.0**exponent:.4g}e{exponent}"


def flops(x: float) -> str:
    """Returns a number as FLOPs are written: 5.76e23."""
    return f"{x:.4g}".replace("e+", "e")


def nats(x: float) -> str:
    return f"{x:.4f}"


def digits(x: float) -> str:
    return f"{x:.3f}"


def _row(label: str, value: str, interval: str) -> str:
    return f"{label:<30}{value:>12}   {interval}".rstrip()


def _quantity(label: str, key: str, plan: dict[str, Any], form) -> str:
    q = plan[key]
    interval = q["interval_80"]
    if q["value"] is None:
        return _row(label, "unknown", "")
    if key in plan["given"]:
        between = "given"
    elif interval is None:
        between = "unknown"
    else:
        between = f"{form(interval[0])} to {form(interval[1])}"
    return _row(label, form(q["value"]), between)


def _spread(q: dict[str, Any], form) -> str:
    if q["interval_80"] is None:
        return ""
    return f" ({form(q['interval_80'][0])} to {form(q['interval_80'][1])})"


def _doublings(plan: dict[str, Any]) -> list[str]:
    return [
        f"  {flops(row['flops'])} FLOPs: "
        f"N* {amount(row['n']['value'])}{_spread(row['n'], amount)}, "
        f"D* {amount(row['d']['value'])}{_spread(row['d'], amount)}, "
        f"loss {nats(row['loss']['value'])}{_spread(row['loss'], nats)}"
        for row in plan.get("doublings", [])
    ]


def _off(plan: dict[str, Any]) -> list[str]:
    if "off_optimum" not in plan:
        return []
    lines = ["Off the optimum: loss at the same FLOPs, and FLOPs for the same loss"]
    for row in plan["off_optimum"]:
        loss = "no tokens left" if row["loss"] is None else f"loss {row['loss']:.4f}"
        ratio = row["flops_ratio"]
        more = "cannot reach it" if ratio is None else f"{100 * (ratio - 1):+.1f} % FLOPs"
        lines.append(f"  {row['n_factor']:>4g} N* = {amount(row['n']):<8} {loss}   {more}")
    return lines


def _instead(plan: dict[str, Any]) -> list[str]:
    best = plan.get("compute_optimal")
    if not best:
        return []
    share = best["flops_ratio_for_same_loss"]
    lines = [
        f"The same FLOPs spent best: N* = {amount(best['n']['value'])}"
        f"{_spread(best['n'], amount)}, D* = {amount(best['d']['value'])}"
        f"{_spread(best['d'], amount)}, loss {nats(best['loss']['value'])}"
        f"{_spread(best['loss'], nats)}."
    ]
    if math.isfinite(share["value"]):
        lines.append(f"The same loss takes {100 * share['value']:.3g} % of the FLOPs at best.")
    return lines


def _served(plan: dict[str, Any]) -> list[str]:
    plain = plan.get("if_trained_optimally")
    if not plain or not math.isfinite(plain["flops_ratio"]):
        return []
    return [
        f"The model that is cheapest to train to this loss (N {amount(plain['n'])}, "
        f"D {amount(plain['d'])}) would cost {100 * (plain['flops_ratio'] - 1):.1f} % more FLOPs "
        "over its life."
    ]


def _repeated(plan: dict[str, Any]) -> list[str]:
    if "loss_floor" not in plan:
        return []
    return [
        f"No compute brings the loss below {nats(plan['loss_floor'])} with "
        f"{amount(plan['unique_tokens'])} unique tokens."
    ]


def _shape(plan: dict[str, Any]) -> list[str]:
    s = plan["shape"]
    if s is None:
        return []
    return [
        f"Nearest shape: {s['n_layers']} layers, width {s['d_model']}, {s['n_heads']} heads of "
        f"{s['d_head']}, FFN {s['d_ff']}, vocabulary {s['vocab_size']}, length {s['length']}:",
        f"  {s['n_params']:,} parameters ({s['n_params_non_embedding']:,} without embeddings), "
        f"{s['n_tokens']:,} tokens, {flops(s['flops'])} FLOPs exactly counted"
        + ("." if s["loss"]["value"] is None else f", loss {nats(s['loss']['value'])}."),
    ]


def _runs(plan: dict[str, Any]) -> list[str]:
    needed = plan.get("runs_needed")
    if not needed:
        return []
    like = "like the fitted ones"
    if "budgets" in needed:
        like = f"of 7 sizes at each of {', '.join(flops(b) for b in needed['budgets'])} FLOPs"
    return [
        f"To know N* to {100 * needed['half_width']:g} % (80 % interval): {needed['runs']} runs "
        f"{like}."
    ]
