"""Shape S of the benchmarks: 0.9 million parameters, 4096 tokens a step.

python -m experiments.bench --shape=S --dtype=float32
"""

from lm.config import default_config


def get_config():
    config = default_config()
    m = config.model
    m.vocab_size, m.d_model, m.n_layers, m.n_heads, m.d_ff, m.max_length = 256, 128, 4, 4, 344, 256
    config.train.batch_size = 16
    config.train.accumulate = 4  # parts of a step that fit a CPU's caches: faster, in less memory
    config.train.steps = 1000
    config.optim.schedule = "constant"
    config.optim.warmup_fraction = 0.0
    return config
