"""The ladder of a laptop: three FLOP budgets, five or six sizes each, on text Python brings.

    python -m experiments.sweep --config=experiments/configs/ladder_cpu.py --workdir=runs/demo

About 7 minutes on 2 cores. The learning rate follows LEARNING_RATE / sqrt(d_model / 32): measured
best for widths 16 to 64 with this batch, so that no size is handicapped.
"""

from lm.config import default_config

BUDGETS = (1e11, 2e11, 4e11)
SHAPES = {  # (d_model, n_layers): sizes around each budget's optimum
    1e11: ((8, 1), (12, 2), (16, 2), (24, 2), (32, 3)),
    2e11: ((8, 2), (16, 2), (24, 2), (32, 3), (48, 3)),
    4e11: ((12, 2), (16, 2), (24, 2), (32, 3), (48, 3), (64, 4)),
}
HELD_OUT = (1.2e12, (40, 3))
LEARNING_RATE = 8e-3
HEAD = 8


def get_config():
    config = default_config()
    config.model.max_length = 128
    config.model.qk_norm = True
    config.train.batch_size = 16
    config.train.flops = BUDGETS[0]
    config.optim.schedule = "cosine"
    config.optim.final_fraction = 0.05
    config.checkpoint.every = 1000
    config.log.every = 20
    return config


def point(flops, shape):
    d_model, n_layers = shape
    return {
        "train.flops": flops,
        "model.d_model": d_model,
        "model.n_layers": n_layers,
        "model.n_heads": max(1, d_model // HEAD),
        "model.d_head": HEAD,
        "optim.learning_rate": LEARNING_RATE / (d_model / 32) ** 0.5,
    }


def get_sweep():
    return [point(flops, shape) for flops in BUDGETS for shape in SHAPES[flops]]


def get_held_out():
    return point(*HELD_OUT)
