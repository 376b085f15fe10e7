"""Biases in norms, attention and FFN: off and on.

python -m experiments.sweep --config=experiments/configs/ablations/biases.py --workdir=runs/biases
"""

from experiments.configs.ablations import SEEDS, base_config


def get_config():
    config = base_config()
    config.model.norm = "layernorm"  # the norm that has a bias to leave out
    return config


def get_ablation():
    variants = {"off": {"model.use_bias": False}, "on": {"model.use_bias": True}}
    return {"variants": variants, "seeds": SEEDS}
