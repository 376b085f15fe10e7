"""Hashed n-grams added to the embedding: none, pairs, up to triples, up to four tokens.

python -m experiments.sweep --config=experiments/configs/ablations/ngrams.py --workdir=runs/ngrams
"""

from experiments.configs.ablations import SEEDS, base_config


def get_config():
    config = base_config()
    config.model.ngram_rows = 2048
    return config


def get_ablation():
    variants = {"none" if n == 1 else f"up to {n}": {"model.ngram_order": n} for n in (1, 2, 3, 4)}
    return {"variants": variants, "seeds": SEEDS}
