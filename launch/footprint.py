"""Memory of one device in a training step, by arithmetic alone: bytes by part.

    state       float32 master weights, the optimizer's moments and the weights' average, as sharded
    gradients   float32, sharded like the weights; with train.reproducible whole, of each part of
                the rows and the one being made, beside whole weights (lm/train/reproducible.py)
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

import math

from launch.pieces import Pieces
from lm.loss import logits_bytes
from lm.pipeline.program import Program
from lm.train import reproducible


def footprint(pieces: Pieces, program: Program | None) -> dict[str, int]:
    """Returns the bytes of each part; program: the pipeline's, None without one."""
    c, m = pieces.config, pieces.config.model
    whole = pieces.w * pieces.tokens * m.d_model
    own = whole // pieces.layout.model_size  # of an activation between layers
    weights = pieces.held_of_layer
    if program is None:
        kept = pieces.layers * pieces.kept
    else:
        kept = stash(pieces, program) + (program.inbox_size + program.ct_size + 4) * own
    ff = (5 if m.gated else 3) * pieces.ff * pieces.tokens
    heads = (2 * pieces.queries + 2 * pieces.keys) * pieces.tokens
    work = 4 * own + 3 * whole + pieces.w * (ff + heads) + (pieces.w + pieces.r) * weights
    work += pieces.scores
    head = pieces.vocab * m.d_model
    logits = logits_bytes(pieces.tokens, pieces.vocab)
    # Of the logits' part: itself in float32 and its gradient in the compute dtype; exp beside it
    # where a sum over devices comes between.
    copies = 1 + pieces.w / 4 + (pieces.layout.model_size > 1)
    of_loss = copies * logits + 2 * whole + head * (pieces.w + 4)
    gradients = 4 * pieces.held
    if c.train.reproducible:
        gradients = _reproducible(pieces)
    elif program is None and c.train.accumulate == 1:
        of_loss -= gradients  # the layers' gradients come after it
    elif program is None and not pieces.sharded:
        gradients *= 2  # a micro-batch's are made whole before they are added
    return {
        "state": int(pieces.held * 4 * (1 + pieces.moments + pieces.averages)),
        "gradients": gradients,
        "batch": 12 * pieces.rows * pieces.microbatches * c.length,
        "kept": int(kept),
        "working": int(max(work, of_loss)),
    }


def _reproducible(pieces: Pieces) -> int:
    """Returns the bytes of whole gradients, and of whole weights where a device holds a part."""
    data = pieces.layout.data_size
    parts = reproducible.parts(pieces.config.train) // data
    whole = 4 * sum(math.prod(row.shape) for _, row, *_ in pieces.parameters)
    gathered = pieces.layout.fully_sharded and data > 1
    return whole * (parts + (parts > 1) + gathered)


def stash(pieces: Pieces, program: Program) -> float:
    """Returns the bytes of a pipeline's buffers of what forwards leave for backwards, and the
    input parts of backwards for their weight parts."""
    of_loss = pieces.w * pieces.tokens * pieces.config.model.d_model / pieces.layout.model_size
    layers = pieces.layers // program.repeats
    kept = program.stash_size * (layers * pieces.kept + of_loss)
    return kept + program.deferred_size * layers * pieces.handed
