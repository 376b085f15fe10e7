"""Positions: rotary, sinusoidal, learned, none.

python -m experiments.sweep --config=experiments/configs/ablations/position.py \
    --workdir=runs/position
"""

from experiments.configs.ablations import SEEDS, base_config


def get_config():
    return base_config()


def get_ablation():
    names = ("rope", "sinusoidal", "learned", "none")
    return {"variants": {name: {"model.position": name} for name in names}, "seeds": SEEDS}
