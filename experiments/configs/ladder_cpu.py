"""The ladder of a laptop: three FLOP budgets, five or six sizes each, on text Python brings.

    python -m experiments.sweep --config=experiments/configs/ladder_cpu.py --workdir=runs/demo

About 7 minutes on 2 cores. No size is handicapped: with the width d the learning rate follows
0.016 sqrt(32 / d) and initial weights have deviation 0.85 / sqrt(d), both measured at widths 16 and
32 (BUILD_NOTES.md).
"""

from lm.config import default_config

BUDGETS = (6e10, 1.2e11, 2.4e11)
# FLOPs: (d_model, n_layers) on both sides of the budget's best size
SHAPES = {
    6e10: ((8, 1), (12, 1), (16, 2), (24, 2), (32, 3)),
    1.2e11: ((8, 1), (16, 1), (16, 2), (24, 2), (32, 3), (48, 3)),
    2.4e11: ((8, 2), (16, 2), (24, 2), (32, 3), (48, 3), (64, 3)),
}
HELD_OUT = (7.5e11, (40, 3))


def get_config():
    config = default_config()
    config.model.max_length = 128
    config.model.qk_norm = True
    config.train.batch_size = 8
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
        "model.n_heads": max(1, d_model // 16),
        "model.d_head": 16,
        "model.init_std": 0.85 / d_model**0.5,
        "optim.learning_rate": 0.016 * (32 / d_model) ** 0.5,
    }


def get_sweep():
    return [point(flops, shape) for flops in BUDGETS for shape in SHAPES[flops]]


def get_held_out():
    return point(*HELD_OUT)
