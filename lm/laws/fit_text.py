"""What a person reads of a law.json on the terminal."""

from collections.abc import Mapping
from typing import Any


def fit_text(content: Mapping[str, Any]) -> str:
    """What a person reads: parameters with intervals, exponents, warnings."""
    lines = [f"{content['formula']}   ({content['method']}, {content['n_runs']} runs)"]
    stderr, intervals = content["stderr"], content["intervals"]
    values = {**content["params"]}
    for name, value in (content["exponents"] or {}).items():
        if values.get(name) != value:
            values[name if name not in values else f"exponent_{name}"] = value
    for name, value in values.items():
        line = f"  {name:<8} {value:<14.7g}"
        if name in intervals:
            low, high = intervals[name]["10"], intervals[name]["90"]
            line += f" +- {stderr[name]:<10.3g} 80 % in [{low:.6g}, {high:.6g}]"
        lines.append(line)
    for group in content.get("groups", []):
        if group["skipped"] is None:
            lines.append(
                f"  {group['name']:<10} {group['n_runs']:>4} runs   N* {group['n']:.4g}   "
                f"D* {group['d']:.4g}   loss {group['loss']:.4f}"
            )
    goal, starts = content.get("objective"), content.get("starts")
    if goal and starts:
        lines.append(
            f"objective {goal['name']}: sum {goal['sum']:.10g}, relative gradient "
            f"{goal['gradient']:.1e}; {starts['agreeing']} of {starts['tried']} starts agree"
        )
    if "rms_log_error" in content:
        errors = content["rms_log_error"]
        line = f"rms of log(predicted / loss): {errors['fitted']:.6g} over the fitted rows"
        if "left_out" in errors:
            line += f", {errors['left_out']:.6g} over the {errors['n_left_out']} left out by where"
        lines.append(line)
    if "validation" in content:
        held = content["validation"]
        lines.append(
            f"fitted to {held['n_fitted']} runs below {held['threshold']:.4g} FLOPs, the other "
            f"{held['n_predicted']} are predicted with a mean relative error of "
            f"{held['mean_relative_error']:.3%}"
        )
    for held in content.get("left_out", []):
        lines.append(
            f"without {held['left_out']}: its {held['n_predicted']} runs are predicted with a mean "
            f"relative error of {held['mean_relative_error']:.3%}"
        )
    for score in content.get("comparison", []):
        lines.append(
            f"  {score['law']:<16} out of sample {score['out_of_sample']:.3%}, in sample "
            f"{score['in_sample']:.3%}, AIC {score['aic']:.1f}, BIC {score['bic']:.1f}"
        )
    if "published_test" in content:
        test = content["published_test"]
        lines.append(
            f"test of {test['name']}: objective {test['objective']:.6g}, p = {test['p_value']:.3g}"
        )
    lines.append(f"status: {content['status']}; {len(content['excluded'])} rows excluded")
    lines += [f"warning: {w}" for w in content["warnings"]]
    return "\n".join(lines)
