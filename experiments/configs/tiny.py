"""A model that trains in seconds, for tests and a first look.

python -m experiments.train --config=experiments/configs/tiny.py --workdir=runs/tiny
"""

from lm.config import default_config


def get_config():
    config = default_config()
    config.model.d_model = 32
    config.model.n_layers = 2
    config.model.n_heads = 2
    config.model.max_length = 32
    config.train.batch_size = 8
    config.train.steps = 40
    config.optim.learning_rate = 3e-3
    config.checkpoint.every = 20
    config.log.every = 1
    return config
