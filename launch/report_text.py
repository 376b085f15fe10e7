"""A compile report as a person reads it."""

from typing import Any

from lm.layout import DATA


def text(report: dict[str, Any]) -> str:
    """Returns the report as lines of text."""
    return "\n".join(
        [
            *_machine(report),
            *_memory(report["bytes_per_device"]),
            *_flops(report["flops"]),
            *_collectives(report["collectives"]),
            *_predicted(report),
            *(f"note: {warning}" for warning in report["warnings"]),
        ]
    )


def size(n: float) -> str:
    """Returns a number of bytes as people write it: 512 B, 1.5 MiB, 95.7 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:,.0f} {unit}" if unit == "B" else f"{n:,.2f} {unit}"
        n /= 1024
    raise AssertionError


def _machine(r: dict[str, Any]) -> list[str]:
    mesh = " x ".join(f"{axis} {n}" for axis, n in r["mesh"].items() if n > 1) or "one device"
    sharded = ", fully sharded" if r["fully_sharded"] and r["mesh"].get(DATA, 1) > 1 else ""
    slices = f", {r['n_slices']} slices along {r['slow_axis']}" if r["n_slices"] > 1 else ""
    return [
        f"{r['topology']}: {r['n_chips']} chips, mesh {mesh}{sharded}{slices}; {r['n_params']:,} "
        f"parameters, {r['batch_size']} sequences, {r['tokens_per_step']:,} tokens a step",
    ]


def _memory(b: dict[str, int]) -> list[str]:
    return [
        f"memory of a device    peak {size(b['peak'])} of {size(b['limit'])}",
        f"  parameters {size(b['parameters'])}, optimizer {size(b['optimizer'])}, arguments "
        f"{size(b['arguments'])}, temporaries {size(b['temporaries'])}",
    ]


def _flops(f: dict[str, Any]) -> list[str]:
    def both(ratio: str, busiest: str) -> str:
        same = abs(f[ratio] - f[busiest]) < 5e-4
        return f"{f[ratio]:.3f}" + ("" if same else f", busiest device {f[busiest]:.3f}")

    lines = [f"products executed      {both('ratio', 'busiest_ratio')} times the model's FLOPs"]
    if f["ratio_outside_attention"] is not None:
        outside = both("ratio_outside_attention", "busiest_ratio_outside_attention")
        lines.append(f"  outside attention    {outside} times")
    kernels = ", ".join(f"{name} x {n:g}" for name, n in f["custom_calls"].items())
    return lines + ([f"  kernels              {kernels}"] if kernels else [])


def _collectives(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return ["nothing crosses devices"]
    lines = [
        f"{'exchange':<20} {'axis':<12} {'group':>5} {'count':>8} {'tensors':>12} {'sent':>12}"
    ]
    for row in rows:
        beside = "beside other work" if row["overlapped"] else "alone"
        far = ", between slices" if row["network"] == "between slices" else ""
        lines.append(
            f"{row['kind']:<20} {row['axis']:<12} {row['group']:>5} {row['count']:>8,.0f} "
            f"{size(row['tensor_bytes']):>12} {size(row['wire_bytes']):>12}  {beside}{far}"
        )
    return lines


def _predicted(r: dict[str, Any]) -> list[str]:
    p = r["predicted"]
    seconds = ", ".join(f"{name} {s:.3g} s" for name, s in p["seconds"].items())
    mfu = "MFU not known" if p["mfu"] is None else f"MFU {p['mfu']:.1%}"
    energy = "" if p["energy_mwh"] is None else f", {p['energy_mwh']:,.3g} MWh ({p['watts_are']})"
    planned = f"{p['planned_tokens']:.3g} planned tokens in {p['days']:,.3g} days"
    return [
        f"at best a step takes   {p['step_seconds']:.3g} s, bound by {p['bound']}",
        f"  {seconds}; exchanges alone {p['exposed_seconds']:.3g} s",
        f"  {p['tokens_per_second']:,.0f} tokens/s, {mfu}",
        f"  {planned}, {p['chip_days']:,.4g} chip-days{energy}",
        f"compiled in {r['compile_seconds']:.1f} s",
    ]
