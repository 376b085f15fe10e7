"""What every ablation here starts from: one small decoder, three seeds, minutes on two cores."""

from lm.config import default_config

SEEDS = (0, 1, 2)
STEPS = 400


def base_config():
    """Returns the config that each variant changes in one respect."""
    config = default_config()
    m = config.model
    m.d_model, m.n_layers, m.n_heads, m.max_length = 48, 2, 2, 128
    m.init_std = 0.85 / m.d_model**0.5
    config.train.batch_size = 8
    config.train.steps = STEPS
    config.optim.learning_rate = 0.01
    config.optim.final_fraction = 0.05
    config.checkpoint.every = None
    config.log.every = 20
    return config
