"""The ladder of a laptop: three FLOP budgets, five sizes, two seeds each, on text Python brings.

    python -m experiments.sweep --config=experiments/configs/ladder_cpu.py --workdir=runs/demo

About 8 minutes on 2 cores. No size is handicapped: initial weights have deviation 0.85 / sqrt(d) at
width d, Muon orthogonalises the updates of matrices and so needs one rate for all widths, and what
noise is left in a run of this size, 1 % of its loss, is halved by seeds (BUILD_NOTES.md).
"""

from lm.config import default_config

BUDGETS = (6e10, 1.2e11, 2.4e11)
# FLOPs: widths on both sides of the budget's best one. Depth and the number of heads stay, so that
# the law sees one family: a third layer or a second head is a step of its own at these sizes.
WIDTHS = {
    6e10: (12, 16, 20, 24, 32),
    1.2e11: (16, 20, 24, 32, 40),
    2.4e11: (20, 24, 32, 40, 48),
}
SEEDS = (0, 1)
HELD_OUT = (7.5e11, 56)


def get_config():
    config = default_config()
    config.model.max_length = 128
    config.model.qk_norm = True
    config.model.n_layers = 2
    config.model.n_heads = 2
    config.train.batch_size = 8
    config.train.flops = BUDGETS[0]
    config.optim.optimizer = "muon"
    config.optim.learning_rate = 0.03
    config.optim.schedule = "cosine"
    config.optim.final_fraction = 0.05
    config.checkpoint.every = 1000
    config.log.every = 20
    return config


def point(flops, d_model, seed=0):
    return {
        "train.flops": flops,
        "model.d_model": d_model,
        "model.init_std": 0.85 / d_model**0.5,
        "seed": seed,
    }


def get_sweep():
    return [point(c, d_model, seed) for c in BUDGETS for d_model in WIDTHS[c] for seed in SEEDS]


def get_held_out():
    return point(*HELD_OUT)
