"""The kinds of JSON files that plan, report and figures read: what each has to hold.

Only what a reader uses is asked for; a file may hold more.
"""

from lm.laws.stored import (
    ANYTHING,
    FIT_AGAIN,
    FLAG,
    NUMBER,
    POSITIVE,
    TEXT,
    WHOLE,
    Kind,
    Maybe,
    Plain,
    is_number,
)

_RUN_AGAIN = "restore it, or run the sweep again, which trains only what is missing"
_NUMBERS = {...: NUMBER}
_INTERVAL = Maybe((NUMBER, NUMBER))
_PERCENTILES = {...: {...: Maybe(NUMBER)}}

LAW = Kind(
    {
        "law": TEXT,
        "params": _NUMBERS,
        "formula?": TEXT,
        "method?": TEXT,
        "stderr?": Maybe({...: Maybe(NUMBER)}),
        "intervals?": Maybe(_PERCENTILES),
        "exponents?": Maybe({"a": NUMBER, "b": NUMBER}),
        "objective?": Maybe(
            {"name": TEXT, "delta?": Maybe(POSITIVE), "sum?": Maybe(NUMBER)},
        ),
        "starts?": Maybe({"tried": WHOLE, "agreeing": WHOLE}),
        "bootstrap?": Maybe({"samples?": WHOLE}),
        "n_runs?": WHOLE,
        "excluded?": Maybe([{"row": WHOLE, "reason": TEXT}]),
        "outliers?": Maybe([{"row": WHOLE}]),
        "status?": TEXT,
        "warnings?": Maybe([TEXT]),
        "columns?": Maybe({...: TEXT}),
        "curve?": Maybe(TEXT),
        "n_counts?": TEXT,
        "largest_flops?": Maybe(POSITIVE),
        "parametric?": Maybe({"params": {...: Maybe(NUMBER)}}),
        "validation?": Maybe(
            {
                "n_fitted": WHOLE,
                "n_predicted": WHOLE,
                "threshold": NUMBER,
                "mean_relative_error": Maybe(NUMBER),
            }
        ),
        "command?": TEXT,
    },
    FIT_AGAIN,
)

_QUANTITY = {"value": Maybe(POSITIVE), "interval_80": Maybe((POSITIVE, POSITIVE))}
PLAN = Kind(
    {
        **dict.fromkeys(("flops", "n", "d", "tokens_per_param", "loss"), _QUANTITY),
        "served_tokens?": POSITIVE,
        **dict.fromkeys(("flops_training?", "flops_serving?", "epochs?"), _QUANTITY),
        "unique_tokens?": POSITIVE,
        "compute_optimal?": ANYTHING,
        "shape?": Maybe(
            dict.fromkeys(("n_layers", "d_model", "n_heads", "d_ff", "n_params", "n_tokens"), WHOLE)
            | {"loss?": _QUANTITY}
        ),
        "convention?": TEXT,
        "n_counts?": TEXT,
        "warnings?": Maybe([TEXT]),
        "command?": TEXT,
    },
    "make it again with experiments.plan",
)

_LOSS = Plain(lambda x: is_number(x) and 1e-9 < x < 1e9, "a loss in nats per token")
PREDICTION = Kind(
    {
        "run_id?": Maybe(TEXT),
        **dict.fromkeys(("predicted?", "measured?", "best_fitted_loss?"), Maybe(_LOSS)),
        **dict.fromkeys(("n_params?", "n_tokens?", "flops?"), Maybe(POSITIVE)),
        "error?": Maybe(NUMBER),
        "interval_80?": Maybe((_LOSS, _LOSS)),
        "law_interval_80?": Maybe((_LOSS, _LOSS)),
        "after_training?": Maybe(FLAG),
    },
    "restore it, or remove it to go on without a prediction",
)

_MEAN = {"mean": Maybe(NUMBER), "stderr": Maybe(NUMBER), "interval_95": _INTERVAL}
ABLATION = Kind(
    {
        "baseline": TEXT,
        "variants": [
            {
                "variant": TEXT,
                "settings": {...: ANYTHING},
                "n_params": Maybe(WHOLE),
                "losses": _NUMBERS,
                "n": WHOLE,
                **_MEAN,
                "difference": Maybe(_MEAN),
            }
        ],
        "diverged": [TEXT],
    },
    _RUN_AGAIN,
)

VALIDATION = Kind(
    {"chosen?": TEXT, "largest_budget_error?": Maybe({...: Maybe(NUMBER)})}, _RUN_AGAIN
)
SWEEP = Kind({"command?": TEXT, "runs?": Maybe([TEXT]), "held_out?": Maybe(TEXT)}, _RUN_AGAIN)
RESULT = Kind({"n_params": POSITIVE, "n_tokens": NUMBER, "flops": NUMBER}, _RUN_AGAIN)
LOGGED = Kind({"n_tokens?": Maybe(NUMBER), "loss?": Maybe(NUMBER)}, _RUN_AGAIN)
CONFIG = Kind({"model": {"vocab_size": Maybe(WHOLE), "d_model": WHOLE}}, _RUN_AGAIN)
