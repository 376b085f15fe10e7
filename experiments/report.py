"""Write report.html of a sweep's folder: one page that opens from disk and asks for nothing else.

  python -m experiments.report --workdir=runs/demo

The answer comes first (N*, D*, tokens per parameter, loss with 80 % intervals), then the run that
was predicted before it was trained, the IsoFLOP curves, the fitted surface, the constants and the
laws this one was chosen among, the loss curves, the table of all runs and the commands to repeat
it. Of an ablation the variants come first, in place of all that needs a law. What the folder does
not hold is said where it would have stood. The figures also go to DIR/figures as PNG and SVG.
"""

from pathlib import Path

from absl import flags

from experiments import cli
from experiments.report_file import write
from lm.errors import BadInput

WORKDIR = flags.DEFINE_string("workdir", None, "the folder of a sweep or of a fit")


def main() -> int | None:
    if not WORKDIR.value:
        raise BadInput("no folder given: add --workdir=DIR, the folder of a sweep")
    print(f"Wrote {write(Path(WORKDIR.value))}.")
    return None


def run() -> None:
    cli.run(main)


if __name__ == "__main__":
    run()
