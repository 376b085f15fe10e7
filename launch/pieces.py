"""What one device does in each piece of a training step, by arithmetic alone.

A piece is a tally (launch/tally.py) that is written down instead of read off a compiled program. It
is of one micro-batch: n = rows x T tokens on a device; W and R are the bytes of precision.compute
and precision.reduce, m the devices along `model`.

products  2 n i j FLOPs for [n, i] x [i, j]. A layer has query, key, value and out, up, down and a
          gate where its FFN has one, each 1/m of its columns or rows; backward takes two products
          for one: of the input's gradient and of the weight's. Attention has two products forward,
          four backward, five in kernels, which form the scores again; they count the causal half in
          kernels, else the blocks that are computed (Dao 2023, arXiv 2307.08691).
again     A layer computed again from its input repeats its forward without the last product, whose
          result no gradient needs (post-norm models need it).
data      Fully sharded, a layer's weights are gathered forward and once more backward (not in a
          pipeline that keeps residuals: they are among them), W bytes a value, and their gradients
          scattered, R bytes (Rajbhandari et al. 2020, arXiv 1910.02054); else gradients are summed
          once a step.
model     A layer gathers [n, D] twice and scatters it twice, W bytes a value, backward the same,
          again two and one (Korthikanti et al. 2022, arXiv 2205.05198).
memory    Each product reads both its factors and writes its result once, W bytes a value;
          PASSES more of every activation for what lies between products. What a forward leaves for
          its backward is written once and read once more, and so is what the input part of a
          backward leaves for its weight part.

What tokens find in an embedding crosses `data`, or its table where that is smaller
(lm/model/embedding.py).
"""

import math
from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np

from launch.groups import Groups
from launch.tally import Collective, Tally
from lm.config import FUSED_ATTENTION, Config
from lm.layout import AXES, DATA, MODEL, PIPE, Layout
from lm.model import transformer
from lm.model.attention import share_computed
from lm.model.spec import ParamSpec, flatten
from lm.train.memory import moments

PASSES = 4.0  # measured, see BUILD_NOTES.md


class Pieces:
    """Tallies of the pieces of a step on one layout. Sizes are a device's own."""

    def __init__(self, c: Config, layout: Layout):
        m, sizes = c.model, dict(layout.mesh.shape)
        self.config, self.layout, self.sizes = c, layout, sizes
        self.places = np.arange(layout.mesh.size).reshape(layout.mesh.devices.shape)
        width = lambda dtype: jnp.dtype(dtype).itemsize
        self.w, self.r = width(c.precision.compute), width(c.precision.reduce)
        pipelined = layout.stages > 1
        self.microbatches = c.pipeline.microbatches if pipelined else c.train.accumulate
        self.batch = max(c.train.batch_size, *(b for _, b in c.train.batch_growth), 0)
        self.rows = self.batch // layout.data_size // self.microbatches
        self.tokens = self.rows * c.length
        split = layout.model_size
        self.queries = m.n_heads * m.head_dim // split
        self.keys = max(m.kv_heads // split, 1) * m.head_dim
        self.ff, self.vocab = m.ff_dim // split, m.padded_vocab // split
        self.layers = m.n_layers // layout.stages  # on a device
        self.parameters = self._parameters()
        self.sharded = layout.fully_sharded and layout.data_size > 1

    # Parameters.

    def _parameters(self) -> list[tuple[str, ParamSpec, tuple, int]]:
        """(name, row, mesh axes of its dimensions, values on a device) of every parameter."""
        found = []
        for name, row in flatten(
            transformer.table(self.config.model, self.config.pipeline.repeats)
        ).items():
            spec = tuple(self.layout.spec(name, row))
            split = math.prod(self.sizes[axis] for axis in spec if axis)
            found.append((name, row, spec, math.prod(row.shape) // split))
        return found

    @property
    def held(self) -> int:
        """Values of the parameters that a device holds."""
        return sum(values for *_, values in self.parameters)

    def gathered(self, within: str) -> int:
        """Values that gathering over `data` makes of the parameters whose name begins so."""
        return sum(
            values * self.sizes[DATA]
            for name, _, spec, values in self.parameters
            if name.startswith(within) and DATA in spec
        )

    @property
    def held_of_layer(self) -> float:
        """Values of one layer's parameters once they are gathered over `data`."""
        whole = (
            values * (self.sizes[DATA] if DATA in spec else 1)
            for name, _, spec, values in self.parameters
            if name.startswith("blocks/")
        )
        return sum(whole) / self.layers

    @property
    def moments(self) -> float:
        """Values of the optimizer's state for each parameter, on average: 2 of AdamW."""
        return moments(self.config.optim, self.config.model)

    @property
    def averages(self) -> int:
        """Values of the average of the weights for each parameter: 1 or none."""
        return int(bool(self.config.optim.ema_decay))

    # What forwards leave for backwards.

    @property
    def again(self) -> bool:
        """Whether a backward computes its layer again from its input."""
        c = self.config
        return c.pipeline.recompute if self.layout.stages > 1 else c.model.remat

    @property
    def gathers_again(self) -> bool:
        """Whether a backward that computes nothing again gathers its layer's weights again."""
        return self.sharded and self.layout.stages == 1 and not self.again

    @property
    def residuals(self) -> float:
        """Bytes that one layer's backward reads of its forward, parameters left out."""
        m, own = self.config.model, self.tokens / self.sizes[MODEL]
        norms = 2 * own * 2 * 4 * m.d_model  # input and normalised, float32
        inputs = (3 + (2 if m.gated else 1)) * m.d_model  # of each product with weights
        heads = 3 * self.queries + 2 * self.keys  # the output twice, query, key, value
        ff = (6 if m.ffn in ("swiglu", "geglu") else 4 if m.gated else 3) * self.ff
        return norms + self.w * self.tokens * (inputs + heads + ff) + self.scores

    @property
    def factors(self) -> tuple[float, float]:
        """Bytes of what goes into one layer's products with weights, and of the gradients of what
        comes out of them; each with one float32 array of both norms."""
        m, own = self.config.model, self.tokens / self.sizes[MODEL]
        inputs = (3 + (2 if m.gated else 1)) * m.d_model + self.queries + self.ff
        outputs = self.queries + 2 * self.keys + (2 if m.gated else 1) * self.ff + 2 * m.d_model
        norms = own * 2 * 4 * m.d_model
        return self.w * self.tokens * inputs + norms, self.w * self.tokens * outputs + norms

    @property
    def handed(self) -> float:
        """Bytes that the input part of one layer's backward leaves for its weight part: the factors
        of its products that the forward has not kept."""
        inputs, outputs = self.factors
        if not self.again:
            return outputs
        # A gate and its other half are handed on apart: only the weight part needs their product.
        return inputs + outputs + self.w * self.tokens * self.ff * self.config.model.gated

    @property
    def kept(self) -> float:
        """Bytes that one layer's forward leaves for its backward: its input where that computes it
        again, else residuals and the weights as they went in, unless they are gathered again."""
        if self.again:
            return self._activation / self.sizes[MODEL]
        weights = 0.0 if self.gathers_again else self.w * self.held_of_layer
        return self.residuals + weights

    @property
    def scores(self) -> float:
        """Bytes of a layer's attention weights where no kernel hides them."""
        m, length = self.config.model, self.config.length
        if m.attention in FUSED_ATTENTION:
            return 0.0
        n_heads = self.queries // m.head_dim
        return self.w * self.tokens * n_heads * length * share_computed(m.attention, length)

    # Exchanges.

    def groups(self, axes: Iterable[str]) -> Groups:
        """Who talks to whom along the axes: [groups, size] places of the mesh."""
        along = [AXES.index(axis) for axis in axes]
        moved = np.moveaxis(self.places, along, range(-len(along), 0))
        return Groups(moved.reshape(-1, math.prod(moved.shape[-len(along) :])))

    def exchange(self, t: Tally, kind: str, axes: tuple[str, ...], size: float, times: float = 1):
        """Adds an exchange of tensors of so many bytes along the axes, if there is anybody."""
        axes = tuple(axis for axis in axes if self.sizes[axis] > 1)
        if axes and size and times:
            groups = self.groups(axes)
            what = Collective(kind, groups, "+".join(axes), int(size), False, size=groups.size)
            t.collectives[what] += times  # type: ignore[assignment]

    def permute(self, t: Tally, times: float) -> None:
        """Adds activations sent to the next stage, after the work of their tick."""
        ring = np.stack([self.places, np.roll(self.places, -1, AXES.index(PIPE))], -1)
        size = self.w * self.tokens // self.sizes[MODEL] * self.config.model.d_model
        what = Collective("collective-permute", Groups(ring.reshape(-1, 2), pairs=True), PIPE,
                          size, False, size=2)  # fmt: skip
        t.collectives[what] += times  # type: ignore[assignment]

    # Pieces.

    def product(self, t: Tally, inner: int, outer: int, times: float = 1) -> None:
        n = self.tokens
        t.matmul_flops += times * 2.0 * n * inner * outer
        t.hbm_bytes += times * self.w * (n * inner + inner * outer + n * outer)

    def passes(self, t: Tally, times: float) -> None:
        """Adds what norms, rotations, activations and residual sums read and write."""
        m, n = self.config.model, self.tokens
        width = 4 * m.d_model + 2 * (self.queries + self.keys) + (3 if m.gated else 2) * self.ff
        t.hbm_bytes += times * self.w * n * width

    def projections(self, t: Tally, times: float = 1, last: bool = True) -> None:
        """Adds the products of a layer with weights, without the last one if told so."""
        m = self.config.model
        for columns in (self.queries, self.keys, self.keys):
            self.product(t, m.d_model, columns, times)
        self.product(t, self.queries, m.d_model, times)
        self.product(t, m.d_model, self.ff, times * (2 if m.gated else 1))
        if last:
            self.product(t, self.ff, m.d_model, times)

    def attention(self, t: Tally, products: int) -> None:
        kind, length = self.config.model.attention, self.config.length
        n, share = self.tokens, share_computed(kind, length)
        flops = products * 2.0 * n * self.queries * length * share
        t.matmul_flops += flops
        t.attention_flops += flops
        t.hbm_bytes += 2 * products * self.w * n * self.queries
        if kind not in FUSED_ATTENTION:  # scores are written and read, in float32 and in W bytes
            heads = self.queries // self.config.model.head_dim
            t.hbm_bytes += products * (4 + self.w) * n * heads * length * share

    def forward(self, again: bool = False) -> Tally:
        """One layer's forward; `again`: from its input, in the backward."""
        t, m = Tally(), self.config.model
        last = not again or m.norm_position == "post"
        self.projections(t, last=last)
        self.attention(t, 2)
        self.passes(t, PASSES / 2)
        t.hbm_bytes += 0 if again else self.kept
        self._gather(t)
        self.exchange(t, "all-gather", (MODEL,), self._activation, 2)
        self.exchange(t, "reduce-scatter", (MODEL,), self._activation, 2 if last else 1)
        return t

    def _gather(self, t: Tally) -> None:
        """Adds a layer's weights gathered over `data`, of which there are none unless sharded."""
        self.exchange(t, "all-gather", (DATA,), self.w * self.gathered("blocks/") / self.layers)

    @property
    def _activation(self) -> int:
        return self.w * self.tokens * self.config.model.d_model

    def backward(self, of_input: bool = True, of_weights: bool = True) -> Tally:
        """One layer's backward or one part of it, its forward not included."""
        t = Tally()
        self.projections(t, of_input + of_weights)
        if of_input:
            fused = self.config.model.attention in FUSED_ATTENTION
            self.attention(t, 5 if fused else 4)
            self.exchange(t, "all-gather", (MODEL,), self._activation, 2)
            self.exchange(t, "reduce-scatter", (MODEL,), self._activation, 2)
        self.passes(t, PASSES / 2 * (of_input + of_weights))
        t.hbm_bytes += self.kept if of_input else sum(self.factors)
        t.hbm_bytes += 0 if of_weights else self.handed
        if self.gathers_again:
            self._gather(t)
        if of_weights:
            values = self.gathered("blocks/") / self.layers
            self.exchange(t, "reduce-scatter", (DATA,), self.r * values)
            t.hbm_bytes += 8 * self.held / self.layers * (self.microbatches > 1)  # summed up
        return t

    def embed(self, backward: bool = False) -> Tally:
        """The first layer's input, or the embedding's gradient."""
        t, m = Tally(), self.config.model
        self._look_up(t, self.vocab, 1, backward)
        if m.ngram_order > 1:
            self._look_up(t, m.ngram_rows // self.sizes[MODEL], m.ngram_order - 1, backward)
        return t

    def _look_up(self, t: Tally, rows: int, ids: int, backward: bool) -> None:
        """Adds what it costs to find so many rows of a table for each token, and their sum."""
        n, d = self.tokens, self.config.model.d_model
        by_table = not self.sharded or n > rows
        if self.sharded and by_table:
            kind, width = ("reduce-scatter", self.r) if backward else ("all-gather", self.w)
            self.exchange(t, kind, (DATA,), width * rows * d)
        elif self.sharded:
            asked = 4 * n * ids * self.sizes[DATA]
            self.exchange(t, "all-gather", (DATA,), asked * (not backward))
            self.exchange(t, "all-to-all", (DATA,), self.w * n * d)
        kind = "all-gather" if backward else "reduce-scatter"
        self.exchange(t, kind, (MODEL,), (4 if by_table else self.w) * n * d)
        t.hbm_bytes += 4.0 * n * (ids + 1) * d

    def loss(self) -> Tally:
        """The head, the loss and both gradients, which are formed in one pass."""
        t, d, n = Tally(), self.config.model.d_model, self.tokens
        self.product(t, d, self.vocab, 3)
        t.hbm_bytes += 4.0 * n * self.vocab * 4  # float32 logits written, read; e; its gradient
        if self.sharded:
            self.exchange(t, "all-gather", (DATA,), self.w * self.vocab * d)
            self.exchange(t, "reduce-scatter", (DATA,), self.r * self.vocab * d)
        self.exchange(t, "all-gather", (MODEL,), self._activation)
        self.exchange(t, "reduce-scatter", (MODEL,), self._activation)
        self.exchange(t, "all-reduce", (MODEL,), 4 * n, 3)
        return t

    def update(self) -> Tally:
        """Once a step: gradients summed over those that hold the same parameters, the optimizer."""
        t = Tally()
        for _, _, spec, values in self.parameters:
            self.exchange(t, "all-reduce", tuple(a for a in AXES if a not in spec), self.r * values)
        # Gradients are read for their norm and for the update; the rest is read and written.
        t.hbm_bytes += 4.0 * self.held * (2 + 2 * (self.moments + 1 + self.averages))
        return t
