"""How big a model, how many tokens, what loss, and how sure: a plan from a scaling law.

The law is one that you fitted (the law.json of experiments.fit, with its bootstrap.csv beside it
for the intervals) or a published one by name: kaplan_2020, chinchilla_2022, chinchilla_2022_tex,
chinchilla_replication_2024, data_constrained_2023.

Ask one of three questions:
  python -m experiments.plan --law=chinchilla_2022 --flops=5.76e23     what does this budget buy?
  python -m experiments.plan --law=chinchilla_2022 --loss=2.0          what does this loss cost?
  python -m experiments.plan --law=chinchilla_2022 --n=280e9 --d=300e9 what does this run reach?

--served_tokens: how many tokens the model will produce in its life. A served token costs a forward
pass, so smaller models trained for longer win; --flops is then the budget for training and serving
together. --unique_tokens: how much different text there is. Repeating it is worth less each time.

FLOPs are counted as 6 N D ("6nd"), or, with --config or for a law fitted by a sweep, as the exact
count of shapes like that config's ("exact"). The shape is the nearest that can be built.
"""

import json
import sys
from pathlib import Path
from typing import Any

from absl import flags

from experiments import cli
from lm.errors import BadInput

LAW = flags.DEFINE_string("law", None, "a law.json, its folder, or the name of a published law")
FLOPS = flags.DEFINE_float("flops", None, "a budget of FLOPs")
LOSS = flags.DEFINE_float("loss", None, "a loss to reach, nats per token")
N = flags.DEFINE_float("n", None, "parameters, with --d: evaluate this point")
D = flags.DEFINE_float("d", None, "training tokens, with --n")
SERVED = flags.DEFINE_float("served_tokens", 0.0, "tokens that the model will serve in its life")
UNIQUE = flags.DEFINE_float("unique_tokens", None, "different tokens there are to train on")
CONFIG = flags.DEFINE_string("config", None, "shapes are like this .py or config.json's model")
CONVENTION = flags.DEFINE_enum("convention", None, ["6nd", "exact"], "how FLOPs are counted")
OUT = flags.DEFINE_string("out", None, "folder for plan.json (default: beside a law.json, or .)")
