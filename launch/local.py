"""Trains with several processes on this machine, as several hosts would: a rehearsal, on the CPU.

    python -m launch.local --processes=2 --devices=4 -- \\
        experiments.train --config=experiments/configs/tiny.py --workdir=runs/two \\
        --config.mesh.data=8

starts the command that many times. The processes find each other (jax.distributed, gloo), each has
that many simulated devices, and the mesh spans them all. Every line they print comes out with the
process's number before it: [0] writes the files and tells how it goes.

Ctrl-C, SIGTERM or SIGUSR1 stop them all after the same step, with the state saved: the exit code is
75, and the same command goes on from there, with any number of processes. Those that have not
ended after --grace seconds are killed; so are the others when one dies. The exit code is that of
the first that failed, 128 + n where signal n killed it.

Processors are shared unless --cores gives each process its own: results are the same to the bit
only with the same number of them.
"""

import importlib.util
import sys

from absl import flags

from experiments import cli
from launch.places import places
from launch.processes import run_together
from lm.errors import BadInput

_PROCESSES = flags.DEFINE_integer("processes", 2, "processes to start", lower_bound=1)
_DEVICES = flags.DEFINE_integer("devices", 1, "simulated devices of each process", lower_bound=1)
_CORES = flags.DEFINE_integer(
    "cores", None, "processors that each process has for itself; none: all share", lower_bound=1
)
_GRACE = flags.DEFINE_float(
    "grace", 60.0, "seconds to save and end in, once told to stop", lower_bound=0.0
)

_command: list[str] = []  # what stood behind `--`


def main() -> int:
    if not _command:
        raise BadInput(
            "no command given: add it behind --, as in launch.local --processes=2 -- "
            "experiments.train --config=experiments/configs/tiny.py --workdir=runs/two"
        )
    module, *arguments = _command
    try:
        found = importlib.util.find_spec(module)
    except (ModuleNotFoundError, ValueError):
        found = None
    if found is None:
        raise BadInput(f"{module} is no Python module here: name one, such as experiments.train")
    command = [sys.executable, "-m", module, *arguments]
    return run_together(
        command, places(_PROCESSES.value, _DEVICES.value, _CORES.value), _GRACE.value
    )


def run() -> None:
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    _command[:] = sys.argv[at + 1 :]
    del sys.argv[at:]
    cli.run(main)


if __name__ == "__main__":
    run()
