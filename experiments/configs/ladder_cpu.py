"""The ladder of a laptop: three FLOP budgets, five or six sizes each, on text Python brings.

    python -m experiments.sweep --config=experiments/configs/ladder_cpu.py --workdir=runs/demo

About 7 minutes on 2 cores. No size is handicapped: with the width d the learning rate follows
0.016 sqrt(32 / d) and initial weights have deviation 0.85 / sqrt(d), both measured at widths 16 and
32 (BUILD_NOTES.md).
"""

from lm.config import default_config

BUDGETS = (6e10, 1.2e11, 2.4e11)
# FLOPs: widths on both sides of the budget's best one. Depth and the number of heads stay, so that
# the law sees one family: a third layer or a second head is a step of its own at these sizes.
WIDTHS = {
    6e10: (12, 16, 20, 24, 32),
    1.2e11: (12, 16, 24, 32, 40),
    2.4e11: (16, 24, 32, 40, 56),
}
HELD_OUT = (7.5e11, 40)


def get_config():
    config = default_config()
    config.model.max_length = 128
    config.model.qk_norm = True
    config.model.n_layers = 2
    config.model.n_heads = 2
    config.train.batch_size = 8
    config.train.flops = BUDGETS[0]
    config.optim.schedule = "cosine"
    config.optim.final_fraction = 0.05
    config.checkpoint.every = 1000
    config.log.every = 20
    return config


def point(flops, d_model):
    return {
        "train.flops": flops,
        "model.d_model": d_model,
        "model.init_std": 0.85 / d_model**0.5,
        "optim.learning_rate": 0.016 * (32 / d_model) ** 0.5,
    }


def get_sweep():
    return [point(flops, d_model) for flops in BUDGETS for d_model in WIDTHS[flops]]


def get_held_out():
    return point(*HELD_OUT)
