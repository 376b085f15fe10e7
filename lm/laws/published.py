"""Published laws by name: the constants as their papers print them, with the source of each.

Rounding changes answers: the exponents .34 and .28 give N* proportional to C^0.4516, the unrounded
ones of the same paper's source C^0.4565. Every set is therefore kept as its source has it.
"""

import math
from difflib import get_close_matches
from typing import NamedTuple

from lm.errors import BadInput


class Published(NamedTuple):
    """A law with its constants.

    law names an entry of lm.laws.forms.LAWS; n_counts says which parameters N counts:
    "n_params" (all) or "n_params_non_embedding"; note is what a reader of a plan must know.
    """

    law: str
    params: dict[str, float]
    source: str
    n_counts: str = "n_params"
    note: str = ""


_KAPLAN = "Kaplan et al. 2020, Scaling Laws for Neural Language Models, arXiv 2001.08361"
_HOFFMANN = "Hoffmann et al. 2022, Training Compute-Optimal Large Language Models, arXiv 2203.15556"

PUBLISHED: dict[str, Published] = {
    "kaplan_2020": Published(
        "kaplan_nd",
        {"N_c": 6.4e13, "D_c": 1.8e13, "alpha_N": 0.076, "alpha_D": 0.103},
        f"{_KAPLAN}, equation 1.5 with table 2",
        n_counts="n_params_non_embedding",
        note="allocates with L(N, D) (equation 1.5, table 2) under 6ND; N counts no embeddings. "
        "The paper's own frontier for training far from convergence, "
        "N = 1.3e9 (C / PF-day)^0.73, is another fit and grows faster",
    ),
    "chinchilla_2022": Published(
        "chinchilla",
        {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28},
        f"{_HOFFMANN}, section D.3, as printed (rounded)",
    ),
    "chinchilla_2022_tex": Published(
        "chinchilla",
        {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.33917084, "beta": 0.2849083},
        f"{_HOFFMANN}, exponents from the TeX source, E, A and B as printed (rounded)",
    ),
    "chinchilla_replication_2024": Published(
        "chinchilla",
        {"E": 1.81686, "A": 482.006, "B": 2085.434, "alpha": 0.34781, "beta": 0.36585},
        "Besiroglu et al. 2024, Chinchilla Scaling: A replication attempt, arXiv 2404.10102, "
        "digits of its notebook",
    ),
    "data_constrained_2023": Published(
        "data_constrained",
        {
            "E": math.exp(0.6254804),
            "A": math.exp(6.255414),
            "B": math.exp(7.3049974),
            "alpha": 0.3526596,
            "beta": 0.3526596,
            "R_D": 15.387756,
            "R_N": 5.309743,
        },
        "Muennighoff et al. 2023, Scaling Data-Constrained Language Models, arXiv 2305.16264, "
        "digits of its notebook",
    ),
}

# The one-variable laws of the same paper (equations 1.1 and 1.2), with their own constants.
KAPLAN_N = Published(
    "kaplan_n",
    {"N_c": 8.8e13, "alpha_N": 0.076},
    f"{_KAPLAN}, equation 1.1",
    n_counts="n_params_non_embedding",
)
KAPLAN_D = Published("kaplan_d", {"D_c": 5.4e13, "alpha_D": 0.095}, f"{_KAPLAN}, equation 1.2")


def published(name: str) -> Published:
    """Returns the published law of that name; raises BadInput with the nearest one."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    near = get_close_matches(name, PUBLISHED, 1, 0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    raise BadInput(
        f"there is no published law {name!r}: {hint}Give one of {', '.join(PUBLISHED)}, "
        "or the path of a law.json"
    )
