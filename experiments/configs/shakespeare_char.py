"""nanoGPT's small CPU model on the characters of Shakespeare, trained better: 2000 steps of 768.

    python -m experiments.train --config=experiments/configs/shakespeare_char.py \\
        --workdir=runs/shakespeare --config.data.path=tinyshakespeare.txt

The last 10 % of the file are held out and every target counts once.
"""

from lm.config import default_config


def get_config():
    config = default_config()
    config.data.source = "files"
    config.data.path = "tinyshakespeare.txt"
    config.data.tokenizer = "characters"
    config.data.validation_fraction = 0.1
    m = config.model
    m.d_model, m.n_layers, m.n_heads, m.max_length, m.qk_norm = 128, 4, 4, 64, True
    # What Muon and n-grams, which cost no product, gain goes into speed: one key-value head, half
    # the FFN. Of nanoGPT's number of parameters 459 thousand belong to n-grams.
    m.n_kv_heads, m.d_ff, m.init_std = 1, 96, 0.07
    m.ngram_order, m.ngram_rows = 4, 3584
    config.train.batch_size = 12
    config.train.steps = 2000
    config.optim.optimizer = "muon"
    config.optim.learning_rate = 4e-3
    config.optim.muon_learning_rate = 0.02
    config.optim.muon_iterations = 3
    config.optim.weight_decay = 0.3
    config.optim.schedule = "linear"
    config.optim.final_fraction = 0.0
    config.checkpoint.every = None
    config.eval.batch_size = 64
    config.log.every = 100
    return config
