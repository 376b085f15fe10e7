"""Hashed n-grams added to the embedding: none, pairs, up to triples, up to four tokens.

python -m experiments.sweep --config=experiments/configs/ablations/ngrams.py --workdir=runs/ngrams
"""

from experiments.configs.ablations import SEEDS, base_config


def get_config():
    config = base_config()
    config.model.ngram_rows = 2048
    return config


def get_ablation():
    names = {1: "none", 2: "pairs", 3: "to_triples", 4: "to_fours"}
    variants = {name: {"model.ngram_order": n} for n, name in names.items()}
    return {"variants": variants, "seeds": SEEDS}
