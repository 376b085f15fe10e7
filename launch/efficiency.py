"""Predicts how a run's throughput grows with the number of chips, for three kinds of layout.

    python -m launch.efficiency --config=experiments/configs/llama2_7b.py --chip=v5p \\
        --config.train.batch_size=1024 --out=runs/efficiency_7b

From 16 to 4096 chips by doubling, on the roundest machine of each size (4x4x8, 2xv5e:16x16), with
fully sharded data parallelism, with that and a model axis of 4, and with that and 4 pipeline stages
in 1F1B. Weak scaling gives every chip --rows sequences, so that the batch grows; strong scaling
keeps the config's batch. Micro-batches are those that are fastest at each size and fit; a line ends
where the batch has no more rows to give, or where no bandwidth between slices is published.
Efficiency is tokens/s of a chip relative to the smallest machine of the line.

The seconds are launch.search's: arithmetic, the least a step takes. --compiled=FILE,FILE names
compile.json files of launch.compile; those that are points of a line are drawn on it and stand in
the table beside the estimate. In --out: efficiency.csv and efficiency.png. No compiler is needed.
"""

from absl import flags

from experiments import cli
from launch import asked
from lm import chips
from lm.errors import BadInput

_CHIP = flags.DEFINE_string("chip", "v5p", "the chip of the machines, such as v5e or h100")
_ROWS = flags.DEFINE_integer("rows", 4, "sequences a chip, weak scaling", lower_bound=1)
_COMPILED = flags.DEFINE_list("compiled", [], "compile.json files to draw beside the estimates")
_OUT = flags.DEFINE_string("out", None, "the folder for efficiency.csv and efficiency.png")


def main() -> None:
    c = asked.config()
    if chips.named(_CHIP.value) is None:
        names = ", ".join(chip.name for chip in chips.CHIPS)
        raise BadInput(f"--chip={_CHIP.value}: the chip is one of {names}")
    out = asked.folder(_OUT.value)
    reports = [asked.report(path) for path in _COMPILED.value]
    from launch.curves import chart, curves, text  # after the flags are checked

    rows = curves(c, _CHIP.value, _ROWS.value, reports)
    print(text(rows))
    asked.write(out, {"efficiency.csv": asked.csv(rows)})
    if out:
        chart(rows, _CHIP.value, out / "efficiency.png")


def run() -> None:
    cli.run(main)


if __name__ == "__main__":
    run()
