"""Trains one model and leaves everything about the run in a folder.

    python -m experiments.train --config=experiments/configs/tiny.py --workdir=runs/tiny

The folder gets config.json (complete: --config=runs/tiny/config.json repeats the run),
metrics.jsonl (a row a logged step), checkpoints/ and result.json. Running the same command again
goes on from the newest checkpoint; a finished run says so. Change any field on the command line:

    python -m experiments.train --config=experiments/configs/tiny.py --workdir=runs/deeper \\
        --config.model.n_layers=4 --config.train.n_tokens=1e6
"""

import json
from pathlib import Path

from absl import flags

from experiments import cli, config_source
from lm import group
from lm.config import Config
from lm.errors import BadInput

_WORKDIR = flags.DEFINE_string("workdir", None, "the run's folder; made if it is not there")


def main() -> None:
    c = group.together(_config)
    from lm.train.loop import train  # after the config is checked: a mistake is told at once

    result = train(c, Path(_WORKDIR.value or ""))
    if group.first():
        print(json.dumps(result))


def _config() -> Config:
    if not _WORKDIR.value:
        raise BadInput("no work folder given: add --workdir=runs/NAME")
    return config_source.from_flags().config()


def run() -> None:
    cli.run(main, joins=True)


if __name__ == "__main__":
    run()
