"""float32 and bfloat16 on the characters of Shakespeare: the difference in loss, seed by seed.

    python -m experiments.sweep --config=experiments/configs/ablations/shakespeare_precision.py \
        --workdir=runs/shakespeare_precision --config.data.path=tinyshakespeare.txt
"""

from experiments.configs import shakespeare_char
from experiments.configs.ablations import SEEDS


def get_config():
    return shakespeare_char.get_config()


def get_ablation():
    variants = {name: {"precision.compute": name} for name in ("float32", "bfloat16")}
    return {"variants": variants, "seeds": SEEDS}
