"""Memory of one device in a training step, by arithmetic alone: bytes by part.

    state       float32 master weights and the optimizer's moments, as sharded
    gradients   float32, sharded like the weights
    batch       inputs, targets and weights of the step
    kept        what forwards leave for backwards: each layer's input where it is computed again,
                else its residuals; in a pipeline for every micro-batch in flight, with what waits
                to be read (lm/pipeline/program.py gives the slots)
    working     the larger of one layer's work (activations, their gradients, its weights gathered
                and their gradients) and the loss's (the part of the logits that is held at once,
                the head and its gradient, lm/loss.py)

The compiler decides what it keeps and what it forms twice: against compiled programs the sum was
0.95 to 1.06 times their peak where layers are computed again (BUILD_NOTES.md).
"""

from launch.pieces import Pieces
from lm.config import FUSED_ATTENTION
from lm.loss import LOGITS_BYTES
from lm.model.attention import share_computed
from lm.pipeline.program import Program


def footprint(pieces: Pieces, program: Program | None) -> dict[str, int]:
    """Returns the bytes of each part; program: the pipeline's, None without one."""
    c, m = pieces.config, pieces.config.model
    whole = pieces.w * pieces.tokens * m.d_model
    own = whole // pieces.layout.model_size  # of an activation between layers
    weights = pieces.held_of_layer
    if program is None:
        kept = pieces.layers * (own if m.remat else _residuals(pieces))
    else:
        layers = pieces.layers // program.repeats
        # Kept residuals hold the weights as they went into the products.
        of_layer = own if c.pipeline.recompute else _residuals(pieces) + pieces.w * weights
        kept = program.stash_size * (layers * of_layer + own)
        kept += (program.inbox_size + program.ct_size + 4) * own
        # An input part hands on what it computed again, and the gradients that weights' need.
        kept += program.deferred_size * layers * 2 * _residuals(pieces)
    ff = (5 if m.gated else 3) * pieces.ff * pieces.tokens
    heads = (2 * pieces.queries + 2 * pieces.keys) * pieces.tokens
    of_layer = 4 * own + 3 * whole + pieces.w * (ff + heads) + (pieces.w + pieces.r) * weights
    of_layer += _scores(pieces)
    head = pieces.vocab * m.d_model
    logits = min(4 * pieces.tokens * pieces.vocab, LOGITS_BYTES)
    of_loss = 3 * logits + 2 * whole + head * (pieces.w + 4)
    return {
        "state": int(pieces.held * 4 * (1 + pieces.moments)),
        "gradients": 4 * pieces.held,
        "batch": 12 * pieces.rows * pieces.microbatches * c.length,
        "kept": int(kept),
        "working": int(max(of_layer, of_loss)),
    }


def _residuals(pieces: Pieces) -> float:
    """Returns the bytes that one layer's backward reads of its forward, parameters left out."""
    m = pieces.config.model
    own = pieces.tokens / pieces.layout.model_size
    norms = 2 * own * 2 * 4 * m.d_model  # input and normalised, float32
    inputs = (3 + (2 if m.gated else 1)) * m.d_model  # of every product with weights, as written
    heads = 3 * pieces.queries + 2 * pieces.keys  # the output twice, query, key, value
    ff = (6 if m.ffn in ("swiglu", "geglu") else 4 if m.gated else 3) * pieces.ff
    return norms + pieces.w * pieces.tokens * (inputs + heads + ff) + _scores(pieces)


def _scores(pieces: Pieces) -> float:
    """Returns the bytes of a layer's attention weights where no kernel hides them."""
    m, length = pieces.config.model, pieces.config.length
    if m.attention in FUSED_ATTENTION:
        return 0.0
    n_heads = pieces.queries // m.head_dim
    return pieces.w * pieces.tokens * n_heads * length * share_computed(m.attention, length)
