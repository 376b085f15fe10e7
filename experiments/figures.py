"""Draw every figure that a table of runs and its fitted law allow, as PNG and SVG.

  python -m experiments.figures --runs=runs/demo/runs.csv --law=runs/demo/law.json --out=figures
  python -m experiments.figures --ablation=runs/staleness --out=figures
  python -m experiments.figures --out=figures

The second form draws an ablation: each variant's loss less the baseline's, against the number of
steps by which gradients are late, for one. The third draws what needs no table: the three phases of
a learning curve, Kaplan's laws and a double descent with its fit. With a law: IsoFLOP curves and
their minima, the surface with its frontier, loss curves, residuals, the bootstrap cloud, profile
curves, roll-outs, predicted against measured, and a sharp metric beside a smooth one. plan.json,
prediction.json and runs/ are read from the law's folder where they are. Every file written is
listed, and what could not be drawn with the reason.
"""

from pathlib import Path

from absl import flags

from experiments import cli, sweep_folder
from lm.errors import BadInput

RUNS = flags.DEFINE_string("runs", None, "the table that the law was fitted to")
LAW = flags.DEFINE_string("law", None, "the law.json of experiments.fit, or its folder")
ABLATION = flags.DEFINE_string("ablation", None, "the folder of an ablation's sweep")
OUT = flags.DEFINE_string("out", None, "the folder for the figures")


def write(out: Path, law: Path | None = None, runs: Path | None = None) -> tuple[list[Path], dict]:
    """Writes the figures; returns the paths and, for those not drawn, name -> reason."""
    from lm.laws.figures import gallery, style

    drawn, undrawn = gallery.draw(gallery.SOURCE)
    if law is not None:
        path = law / "law.json" if law.is_dir() else law
        fitted, undrawn = gallery.draw(gallery.FITTED, sweep_folder.material(path, runs))
        drawn |= fitted
    written = [path for name, made in drawn.items() for path in style.write(made, out, name)]
    return written, undrawn


def main() -> int | None:
    if not OUT.value:
        raise BadInput("no folder given: add --out=DIR for the figures")
    if ABLATION.value and (RUNS.value or LAW.value):
        raise BadInput("an ablation has no law: give --ablation alone, or --runs and --law")
    if bool(RUNS.value) != bool(LAW.value):
        lacking = "--runs, the table the law was fitted to" if LAW.value else "--law=DIR/law.json"
        raise BadInput(f"a law and its table come together: add {lacking}")
    law = Path(LAW.value) if LAW.value else None
    if ABLATION.value:
        _ablation(Path(ABLATION.value), Path(OUT.value))
        return None
    written, undrawn = write(Path(OUT.value), law, Path(RUNS.value) if RUNS.value else None)
    for path in written:
        print(f"Wrote {path}.")
    for name, reason in undrawn.items():
        print(f"Not drawn: {name}: {reason}.")
    return None


def _ablation(folder: Path, out: Path) -> None:
    from lm.laws.figures import ablation, style

    found = sweep_folder.ablation(folder)
    if found is None:
        raise BadInput(f"there is no {folder / 'ablation.json'}: run an ablation's sweep first")
    for path in style.write(ablation.differences(found), out, f"ablation_{folder.resolve().name}"):
        print(f"Wrote {path}.")


def run() -> None:
    cli.run(main)


if __name__ == "__main__":
    run()
