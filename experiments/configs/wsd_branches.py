"""Four lengths of one model for little more than the longest: they share the constant rate's trunk.

    python -m experiments.sweep --config=experiments/configs/wsd_branches.py --workdir=runs/branches

Each length decays over its own last fifth, and starts from the state that the one before kept where
its decay began. runs.csv gets a row a length: loss against tokens at one size.
"""

from experiments.configs.ablations import base_config

STEPS = (200, 300, 450, 675)


def get_config():
    config = base_config()
    config.train.steps = STEPS[0]
    o = config.optim
    o.final_fraction = 0.0
    o.schedule, o.warmup_steps, o.decay_fraction, o.keep_trunk = "wsd", 20, 0.2, True
    return config


def get_sweep():
    return [{"train.steps": steps} for steps in STEPS]
