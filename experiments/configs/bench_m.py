"""Shape M of the benchmarks: 30 million parameters, 4096 tokens a step.

python -m experiments.bench --shape=M --dtype=bfloat16
"""

from lm.config import default_config


def get_config():
    config = default_config()
    m = config.model
    m.vocab_size, m.d_model, m.n_layers, m.n_heads = 8192, 512, 8, 8
    m.d_ff, m.max_length = 1408, 512
    config.train.batch_size = 8
    config.train.accumulate = 4  # parts of a step that fit a CPU's caches: faster, in less memory
    config.train.steps = 1000
    config.optim.schedule = "constant"
    config.optim.warmup_fraction = 0.0
    return config
