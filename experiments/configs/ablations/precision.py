"""Number formats of compute, over float32 weights: their differences in loss.

python -m experiments.sweep --config=experiments/configs/ablations/precision.py \
    --workdir=runs/precision
"""

from experiments.configs.ablations import SEEDS, base_config


def get_config():
    return base_config()


def get_ablation():
    variants = {
        name: {"precision.compute": name, "precision.matmul": "compute"}
        for name in ("float32", "bfloat16", "float16")
    }
    variants["float8"] = {"precision.compute": "bfloat16", "precision.matmul": "float8"}
    return {"variants": variants, "seeds": SEEDS}
