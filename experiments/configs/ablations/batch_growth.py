"""A batch that grows while training, at equal tokens: from half to twice the constant one.

python -m experiments.sweep --config=experiments/configs/ablations/batch_growth.py \
    --workdir=runs/batch_growth
"""

from experiments.configs.ablations import SEEDS, STEPS, base_config

TOKENS = STEPS * 8 * 128


def get_config():
    config = base_config()
    config.train.steps = None
    config.train.n_tokens = TOKENS
    return config


def get_ablation():
    growth = ((TOKENS // 4, 8), (TOKENS // 2, 16))
    variants: dict[str, dict] = {"constant": {"train.batch_size": 8}}
    for rule in ("sqrt", "linear", "constant"):
        variants[f"growing_{rule}_rate"] = {
            "train.batch_size": 4,
            "train.batch_growth": growth,
            "train.batch_growth_lr": rule,
        }
    return {"variants": variants, "seeds": SEEDS}
