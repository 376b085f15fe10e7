"""What a training step would take on a machine, by arithmetic alone: seconds, idle time, memory.

    step    = the pieces of launch/pieces.py, each as often as it happens, through the roofline of
              launch/roofline.py, which also prices compiled programs
    tick    = in a pipeline stages move in lockstep: a tick takes as long as the longest piece that
              any stage does in it, exchanges of weights included (lm/pipeline/schedule.py)
    idle    = 1 - seconds of work / (stages x seconds of all ticks)

All exchanges are taken to run alone: a pipeline's come after all work of their tick
(lm/pipeline/spmd.py), and those along `data` and `model` did in compiled programs (BUILD_NOTES.md).
Like the roofline's, the seconds are the least: latencies and products that do not fill the matrix
unit are left out.

Memory of a device by its parts is launch/footprint.py's.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from launch.footprint import footprint
from launch.layouts import Candidate
from launch.pieces import Pieces
from launch.roofline import Prediction, outlook, predict
from launch.tally import Tally
from launch.topology import Machine
from lm import budget
from lm.errors import BadInput
from lm.pipeline.program import CODES, Program, make_program
from lm.pipeline.schedules import make_schedule


@dataclass(frozen=True)
class Estimate:
    """An estimated step. Tallies are of one device; memory is bytes of one device, by part."""

    prediction: Prediction
    busiest: Tally  # of the device that computes most
    executed: float  # FLOPs of products, summed over devices
    idle: float  # share of their time that pipeline stages wait
    memory: dict[str, int]
    limit: int  # bytes that a program may use
    meaning: dict[str, float | None]  # tokens/s, MFU and what launch/roofline.py makes of them

    @property
    def peak(self) -> int:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.peak <= self.limit


class Estimator:
    """Estimates layouts on one machine. What several have in common is worked out once."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self._works = cache(lambda c, layout: Works(Pieces(c, layout), machine))

    def __call__(self, candidate: Candidate) -> Estimate:
        """Returns what a step costs; the candidate's layout is of this machine's devices.

        Raises BadInput where the price takes a number that is not published.
        """
        c, layout = candidate.config, candidate.layout
        # Pieces are alike in every schedule of as many micro-batches.
        plain = replace(c.pipeline, schedule="1f1b", repeats=1)
        works = self._works(replace(c, pipeline=plain), layout)
        pieces, program, idle = works.pieces, None, 0.0
        if layout.stages == 1:
            lockstep = busiest = works.whole()
            executed = lockstep.matmul_flops * layout.mesh.size
        else:
            p = c.pipeline
            program = _program(p.schedule, layout.stages, p.microbatches, p.repeats)
            lockstep, busiest, executed, idle = works.pipelined(program)
        found = works.price(lockstep)
        step_tokens = pieces.batch * c.length
        model_flops = budget.flops_per_token(c.model, c.length) * step_tokens
        planned, dtype = budget.horizon(c).n_tokens, c.precision.matmul_dtype
        return Estimate(
            found,
            busiest,
            executed,
            idle,
            footprint(pieces, program),
            int(self.machine.chip.hbm_limit),
            outlook(found, self.machine, dtype, step_tokens, model_flops, planned),
        )


_program = cache(lambda *schedule: make_program(make_schedule(*schedule)))


class Works:
    """The pieces of a layout put together: whole steps, and what a stage does in a tick."""

    def __init__(self, pieces: Pieces, machine: Machine):
        self.pieces, self.machine = pieces, machine
        repeated = [(pieces.forward(again=True), 1)] if pieces.again else []
        self.layer = {
            "idle": Tally(),
            "forward": pieces.forward(),
            "backward": _plus(*repeated, (pieces.backward(), 1)),
            "input": _plus(*repeated, (pieces.backward(of_weights=False), 1)),
            "weight": pieces.backward(of_input=False),
        }
        self.embed, self.embed_back = pieces.embed(), pieces.embed(backward=True)
        self.loss, self.update = pieces.loss(), pieces.update()
        self._tick = cache(self._make_tick)

    def price(self, t: Tally) -> Prediction:
        layout = self.pieces.layout
        mesh, devices = dict(layout.mesh.shape), list(layout.mesh.devices.flat)
        dtype = self.pieces.config.precision.matmul_dtype
        found = predict(t, self.machine, mesh, devices, dtype)
        if found.unknown:  # would be priced at nothing, and so look best
            raise BadInput(
                f"a step on {self.machine.name} has no price: {' and '.join(found.unknown)} is not "
                "known; take another machine, or another precision if that is what is missing"
            )
        return found

    def whole(self) -> Tally:
        """Returns a step without a pipeline."""
        k, layers = self.pieces.microbatches, self.pieces.layers
        return _plus(
            (self.embed, k),
            (self.layer["forward"], k * layers),
            (self.loss, k),
            (self.layer["backward"], k * layers),
            (self.embed_back, k),
            (self.update, 1),
        )

    def _make_tick(self, code: int, layers: int) -> tuple[Tally, float]:
        """Returns (what a stage does in a tick, its seconds); code as `pipelined` makes it."""
        t = _plus(
            (self.layer[_NAMES[code // 8]], layers),
            (self.embed, code & FIRST),
            (self.loss, (code & LAST) // LAST),
            (self.embed_back, (code & BACK) // BACK),
        )
        return t, self.price(t).step

    def pipelined(self, program: Program) -> tuple[Tally, Tally, float, float]:
        """Returns (a step in lockstep, the busiest stage's own, FLOPs of all devices, idle)."""
        pieces, layers = self.pieces, self.pieces.layers // program.repeats
        # With the first group's work comes the embedding, with the last group's forward the loss.
        group = program.chunk * program.stages + np.arange(program.stages)
        forward = program.what == CODES["forward"]
        back = (program.what == CODES["backward"]) | (program.what == CODES["input"])
        codes = 8 * program.what + BACK * (back & (group == 0))
        codes += forward * (
            FIRST * (group == 0) + LAST * (group == program.stages * program.repeats - 1)
        )
        found, tick = np.unique(codes, return_inverse=True)
        tick = tick.reshape(codes.shape)  # (ticks, stages), places in `found`
        tallies, prices = zip(*(self._tick(code, layers) for code in found.tolist()), strict=True)
        always = _plus((self.update, 1))
        n_sent = int(program.sends_forward.sum()) + int(program.sends_backward.sum())
        pieces.permute(always, n_sent)

        def work(ticks: np.ndarray) -> Tally:
            times = np.bincount(ticks, minlength=len(tallies)).tolist()
            return _plus((always, 1), *zip(tallies, times, strict=True))

        seconds = np.array(prices)[tick]
        longest = np.take_along_axis(tick, seconds.argmax(1)[:, None], 1)[:, 0]
        flops = np.array([t.matmul_flops for t in tallies])[tick].sum(0)
        idle = 1 - seconds.sum() / (program.stages * seconds.max(1).sum())
        executed = flops.mean() * pieces.layout.mesh.size
        return work(longest), work(tick[:, flops.argmax()]), float(executed), float(idle)


FIRST, LAST, BACK = 1, 2, 4  # what comes with a tick's layers: embedding, loss, its gradient
_NAMES = {code: name for name, code in CODES.items()}


def _plus(*parts: tuple[Tally, float]) -> Tally:
    total = Tally()
    for part, times in parts:
        if times:
            total.add(part, times)
    return total
