"""The norm, RMSNorm or LayerNorm, and its place, before a branch or after the sum.

python -m experiments.sweep --config=experiments/configs/ablations/norm.py --workdir=runs/norm
"""

from experiments.configs.ablations import SEEDS, base_config


def get_config():
    return base_config()


def get_ablation():
    variants = {
        f"{norm}_{place}": {"model.norm": norm, "model.norm_position": place}
        for place in ("pre", "post")
        for norm in ("rmsnorm", "layernorm")
    }
    return {"variants": variants, "seeds": SEEDS}
