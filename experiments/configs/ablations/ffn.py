"""FFN variants at equal parameters: a gated one is 2/3 as wide (Shazeer 2020).

python -m experiments.sweep --config=experiments/configs/ablations/ffn.py --workdir=runs/ffn
"""

from experiments.configs.ablations import SEEDS, base_config
from lm.config import FFNS, GATED_FFNS


def get_config():
    return base_config()


def get_ablation():
    widths = {ffn: 128 if ffn in GATED_FFNS else 192 for ffn in FFNS}  # 3 x 128 is 2 x 192
    variants = {ffn: {"model.ffn": ffn, "model.d_ff": width} for ffn, width in widths.items()}
    return {"variants": variants, "seeds": SEEDS}
