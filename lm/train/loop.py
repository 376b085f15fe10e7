"""The training loop: dispatch a step, read the one before, log, evaluate, save, end.

The host keeps one step ahead of what it reads, so the device never waits for it. Everything that
has to survive a restart is in the train state or in `Standing`, and both are in the checkpoint.
"""

import contextlib
import dataclasses
import math
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from lm import budget, group
from lm.chips import peak_flops
from lm.data.build import Batch, dtypes
from lm.data.loader import prefetch
from lm.errors import Diverged, Stopped
from lm.evaluate import Evaluator
from lm.progress import Progress, clock, say
from lm.train import memory, skipped, trunk
from lm.train import state as train_state
from lm.train import workdir as files
from lm.train.checkpoint import Checkpoints
from lm.train.explain import large_replicated
from lm.train.goodput import Clock, lost_since, start_time
from lm.train.hosts import Hosts
from lm.train.mirror import Mirror
from lm.train.profile import Profile
from lm.train.setup import Run
from lm.train.standing import Standing, finite, result
from lm.train.start import started
from lm.train.step import jit_step, learning_rate
from lm.train.stop import StopSignals
from lm.train.trackers import trackers

ALWAYS = {"loss", "lr", "grad_norm", "clip", "n_valid"}  # of a step's metrics


class Loop:
    """One process's part of a run. Made once, used once."""

    def __init__(self, run: Run, kept: Mirror, branch_of: Path | None):
        self.run, self.c, self.kept = run, run.config, kept
        self.workdir = workdir = kept.folder
        self.branch_of, self.trunk_end = branch_of, trunk.end(run.config)
        began = start_time()
        self.started = self.row_started = time.monotonic()
        self.row_tokens = self.row_places = 0
        folder = workdir / "checkpoints"
        self.checkpoints = group.together(lambda: self._checkpoints(folder))
        self.state, self.standing = self._first_or_restored()
        self.step = int(self.state.step)  # completed and read
        self.earlier_seconds = self.standing.seconds
        spent = self.standing.spent
        self.clock = Clock(began, spent, lost_since(workdir, spent))
        log = lambda: files.MetricsFile(workdir / "metrics.jsonl", self.step)
        self.metrics = group.together(lambda: log() if group.first() else None)
        make = lambda: trackers(self.c, workdir) if group.first() else []
        self.trackers = group.together(make)
        self.profile, self.hosts = Profile(self.c.log, workdir), Hosts()
        self.evaluator = Evaluator(run.model, run.dataset, run.layout, self.c)
        self.progress = Progress(workdir.name, run.horizon.steps, self.step)
        self.tail_from = trunk.tail_start(run.horizon.steps)
        self.stop = StopSignals()
        kind, count = jax.devices()[0].device_kind, run.layout.mesh.size
        peak = peak_flops(kind, self.c.precision.matmul_dtype)
        self.peak = peak * count if peak else None
        self._announce()

    def _checkpoints(self, folder: Path) -> Checkpoints:
        return Checkpoints(folder, self.c.checkpoint, then=self.kept.push)

    def _first_or_restored(self) -> tuple[train_state.TrainState, Standing]:
        run = self.run
        with jax.set_mesh(run.layout.mesh):
            abstract = train_state.abstract(run.model.table, run.tx, run.layout)
            found = group.together(lambda: self.checkpoints.restore(abstract))
            if found is None and self.branch_of:
                branch_of = self.branch_of
                take = lambda: trunk.take(branch_of, self.c, abstract, self.workdir)
                found = group.together(take)
            if found is not None:
                return found[0], Standing(**found[1])
            args = (run.model.table, run.tx, run.layout, self.c.seed)
            first = train_state.initial(*args)
            if self.c.checkpoint.start_from:
                first = group.together(lambda: started(first, self.c.checkpoint, run.layout))
            return first, Standing()

    def _announce(self) -> None:
        h, m = self.run.horizon, self.c.model
        epoch = self.run.dataset.n_train_sequences
        epochs = f", {h.sequences(h.steps) / epoch:.2f} epochs" if epoch else ""
        resumed = ""
        if 0 < self.step < h.steps:
            rows = h.batch_size(self.step + 1)
            rate = learning_rate(self.c, h.steps)(jnp.int32(self.step + 1), rows)
            resumed = f"; going on from step {self.step}, learning rate {float(rate):.4g}"
        say(
            f"{self.workdir.name}: {budget.n_params(m):,} parameters, {h.n_tokens:,} tokens in "
            f"{h.steps:,} steps ({h.excess:,} tokens above the budget{epochs}), {h.flops:.3g} FLOPs"
            f"{resumed}"
        )
        if least := self.run.dataset.entropy_rate:
            say(f"the source's entropy rate is {least:.4f} nats: no expected loss lies below it")
        replicated = large_replicated(self.run)
        if replicated:
            say(f"large and whole on every device: {', '.join(replicated)}")
        used, n = self.run.layout.mesh.size, jax.device_count()
        if used < n:
            say(f"{used} of {n} devices are used: set mesh.data=-1 for all")
        if self.peak:
            say(f"mfu = model FLOPs per second (causal) / {self.peak:.4g} FLOP/s dense peak")

    def result(self) -> dict[str, Any]:
        """Runs to the end and returns what is in result.json."""
        try:
            with self.stop, jax.set_mesh(self.run.layout.mesh):
                self._steps()
                with self.clock.spent("saving"):
                    self.checkpoints.wait()
                return self._write_result("finished")
        except Diverged:
            self._write_result("diverged")
            raise
        finally:
            told = isinstance(sys.exception(), OSError)
            closes = [] if told else [self.checkpoints.close]
            closes += [self.metrics.close] if self.metrics else []
            closes += [self.progress.close, *(t.close for t in self.trackers), self.profile.close]
            with contextlib.ExitStack() as last:  # all of them, the last first, whatever one raises
                for close in closes:
                    last.callback(close)

    def _steps(self) -> None:
        h = self.run.horizon
        if self.step == self.trunk_end:  # a branch that leaves its trunk where that one ended
            self._keep_trunk()
        if self.step >= h.steps:
            return
        programs = self._compile()
        pending: dict[str, Any] | None = None
        made = prefetch(self._batch, self.step + 1, h.steps, self.c.data.workers)
        with contextlib.closing(made) as batches:
            for step, batch in enumerate(self.clock.waiting(batches), self.step + 1):
                self.profile.before(step, self.state)
                program = programs[h.batch_size(step)]
                self.state, metrics = program(self.state, batch)
                if pending is not None:
                    self._read(pending)
                pending = metrics
                self.checkpoints.check()
                every = (self.c.eval.every, self.c.checkpoint.every)
                due = step == self.trunk_end or any(self._due(step, n) for n in every)
                stop = self.stop.asked()
                # Simulated devices that run two steps at once may wait for each other for ever.
                if stop or due or self.run.layout.simulated:
                    self._read(pending)
                    pending = None
                if stop or due:
                    self._at(step, stop)

    def _compile(self) -> dict[int, Any]:
        """Returns the step compiled for every batch size of the run: nothing compiles later."""
        run, sizes = self.run, sorted({s.batch_size for s in self.run.horizon.stages})
        step = jit_step(self.c, run.model, run.tx, run.horizon.steps, run.layout)
        abstract = train_state.abstract(run.model.table, run.tx, run.layout)
        started = time.monotonic()

        def compiled(rows: int):
            shape = (rows, self.c.length)
            rows_of = lambda dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=run.layout.batch)
            parts: Any = (d and rows_of(d) for d in dtypes(self.c.data.packing))
            batch = Batch(*parts)
            return step.lower(abstract, batch).compile()

        programs = {rows: compiled(rows) for rows in sizes}
        group.meet("compiled")
        say(f"{self.workdir.name}: compiled in {clock(time.monotonic() - started)}")
        held = memory.bytes_by_part(abstract, programs[sizes[-1]])
        say(memory.told(held))
        if group.first():
            memory.write(self.workdir, held)
        self.row_started = time.monotonic()
        self.clock.turn("steps")
        return programs

    def _batch(self, step: int) -> Batch:
        """Makes a step's batch and places it: on the loader's thread, while a step runs."""
        rows = self.run.horizon.batch_size(step)
        first = self.run.horizon.sequences(step - 1)
        layout = self.run.layout
        return layout.put_batch(self.run.dataset.batch(first, rows, layout.local_rows(rows)))

    def _read(self, metrics: dict[str, Any]) -> None:
        """Takes in the next step's metrics, which waits for that step to be done."""
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self.step += 1
        s, loss = self.standing, values["loss"]
        s.n_tokens += round(values["n_valid"])
        self.row_tokens += round(values["n_valid"])
        self.row_places += self.run.horizon.batch_size(self.step) * self.c.length
        if self.step > self.tail_from and not values.get("skipped"):
            s.tail_sum, s.tail_count = s.tail_sum + loss, s.tail_count + 1
        if self.step % self.c.log.every == 0 or self.step == self.run.horizon.steps:
            self._log(values)
        skipped.check(self.c.optim, self.step, values, s)
        if not values.get("skipped"):
            s.compare(self.step, loss)

    def _log(self, values: dict[str, float]) -> None:
        now = time.monotonic()
        seconds = max(now - self.row_started, 1e-9)
        rate, places = self.row_tokens / seconds, self.row_places / seconds
        self.row_started, self.row_tokens, self.row_places = now, 0, 0
        loss = values["loss"]
        self._write_row(
            {
                "step": self.step,
                "n_tokens": self.standing.n_tokens,
                "loss": finite(loss),
                "lr": values["lr"],
                "grad_norm": finite(values["grad_norm"]),
                "clip": finite(values["clip"]),
                "tokens_per_second": rate,
                "mfu": self._mfu(places),
                "seconds": self._seconds(),
                **{name: finite(x) for name, x in values.items() if name not in ALWAYS},
            }
        )
        if group.first():
            self.clock.beat(self.workdir)
        self.progress.update(self.step, f"loss {loss:.4f}, {rate:,.0f} tokens/s")

    def _write_row(self, row: dict[str, Any]) -> None:
        if self.metrics:
            self.metrics.write(row)
        for tracker in self.trackers:
            tracker.write(row)

    def _mfu(self, places_per_second: float) -> float | None:
        flops = budget.flops_per_token(self.c.model, self.c.length)
        return places_per_second * flops / self.peak if self.peak else None

    def _seconds(self) -> float:
        return self.earlier_seconds + time.monotonic() - self.started

    def _due(self, step: int, every: int | None) -> bool:
        return step == self.run.horizon.steps or (every is not None and step % every == 0)

    def _at(self, step: int, stop: str | None) -> None:
        """What is due after a step that was read: the evaluation, then the save that holds it."""
        paused = time.monotonic()
        self.hosts.look()
        if self._due(step, self.c.eval.every):
            with self.clock.spent("evaluating"):
                self._evaluate(step)
        if step == self.trunk_end:
            self._keep_trunk()
        if self._due(step, self.c.checkpoint.every) or stop:
            with self.clock.spent("saving"):
                self._save(self.checkpoints)
        if stop and step < self.run.horizon.steps:
            with self.clock.spent("saving"):
                self.checkpoints.wait()
            self._write_result("stopped")
            raise Stopped(f"{stop}: step {step} is saved in {self.kept.shown}; run again to go on")
        self.row_started += time.monotonic() - paused

    def _evaluate(self, step: int) -> None:
        loss, bits_per_byte, by_source = self.evaluator(train_state.evaluated(self.state))
        if not math.isfinite(loss):
            raise Diverged(f"eval_loss is {loss} after step {step}: lower optim.learning_rate")
        row = {"step": step, "eval_loss": loss, "eval_bits_per_byte": bits_per_byte}
        self._write_row(row | ({"eval_loss_by_source": by_source} if by_source else {}))
        s = self.standing
        s.eval_loss_by_source = by_source
        s.eval_step, s.eval_loss, s.eval_bits_per_byte = step, loss, bits_per_byte

    def _keep_trunk(self) -> None:
        """Before a checkpoint of the same step: a run restored there would not come by again."""
        folder = self.workdir / trunk.FOLDER
        kept = group.together(lambda: self._checkpoints(folder))
        if self.step in kept.steps.all():
            return
        with self.clock.spent("saving"):
            self.checkpoints.wait()
            self._save(kept)
            kept.close()

    def _save(self, where: Checkpoints) -> None:
        if self.metrics:
            self.metrics.sync()
        standing = dataclasses.replace(
            self.standing, seconds=self._seconds(), spent=self.clock.seconds()
        )
        where.save(self.state, dataclasses.asdict(standing))

    def _write_result(self, status: str) -> dict[str, Any]:
        s = dataclasses.replace(self.standing, seconds=self._seconds())
        run_id = files.saved_run_id(self.workdir)
        found = result(self.c, s, run_id, self.step, status, self._mfu)
        if group.first():
            self.clock.write(self.workdir)
            files.write_while_training(self.workdir / "result.json", found)
            say(self.clock.told())
        return found
