"""Gradients some steps old: what updates without waiting for the slowest worker cost.

python -m experiments.sweep --config=experiments/configs/ablations/staleness.py \
    --workdir=runs/staleness
"""

from experiments.configs.ablations import SEEDS, base_config


def get_config():
    return base_config()


def get_ablation():
    variants = {f"{k}_steps": {"optim.staleness": k} for k in (0, 1, 2, 4, 8, 16)}
    return {"variants": variants, "seeds": SEEDS}
