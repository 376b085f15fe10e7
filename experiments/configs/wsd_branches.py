"""Four lengths of one model for little more than the longest: they share the constant rate's trunk.

    python -m experiments.sweep --config=experiments/configs/wsd_branches.py --workdir=runs/branches

Each length decays over its own last fifth, and starts from the state that the one before kept where
its decay began. runs.csv gets a row a length: loss against tokens at one size.
"""

from lm.config import default_config

STEPS = (200, 300, 450, 675)


def get_config():
    config = default_config()
    m = config.model
    m.d_model, m.n_layers, m.n_heads, m.max_length = 48, 2, 2, 128
    m.init_std = 0.85 / m.d_model**0.5
    config.train.batch_size = 8
    config.train.steps = STEPS[0]
    o = config.optim
    o.learning_rate, o.final_fraction = 0.01, 0.0
    o.schedule, o.warmup_steps, o.decay_fraction, o.keep_trunk = "wsd", 20, 0.2, True
    config.checkpoint.every = None
    return config


def get_sweep():
    return [{"train.steps": steps} for steps in STEPS]
