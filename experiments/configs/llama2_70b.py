"""Llama 2 70B (Touvron et al. 2023, arXiv 2307.09288, table 1): grouped-query, 8 kv heads."""

from lm.config import default_config


def get_config():
    config = default_config()
    m = config.model
    m.vocab_size, m.d_model, m.n_layers, m.n_heads, m.d_ff = 32000, 8192, 80, 64, 28672
    m.n_kv_heads = 8
    m.tie_embeddings, m.max_length, m.scan_layers, m.remat = False, 4096, True, True
    m.attention = "splash"  # on TPUs; cudnn on GPUs
    config.precision.compute = "bfloat16"
    config.precision.reduce = "bfloat16"
    config.train.batch_size = 1024
    config.train.n_tokens = 2_000_000_000_000
    config.optim.learning_rate = 1.5e-4
    return config
