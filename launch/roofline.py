"""How long a step takes if nothing waits without need: the least time each resource allows.

    compute  = FLOPs of products on the busiest device / its peak in the compute dtype
    memory   = bytes read from and written to HBM / its bandwidth
    network  = bytes sent / bandwidth of the links along that axis, for every axis and the slow one
    step     = max(compute, memory, the longest network's exchanges that run beside other work)
               + all exchanges that nothing runs beside

An axis that spans whole rings of the torus sends both ways on each of them, one that spans part of
a row sends one way; a permute uses one link. Latencies, products that do not fill the matrix
unit and contention are left out, so the prediction is a lower bound: a plan that fails here fails.

    tokens/s = tokens of a step / step;  MFU = model FLOPs of a step / (step x chips x peak)
    days     = planned tokens / tokens/s;  energy = days x chips x the chip's power
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.groups import Groups
from launch.tally import Collective, Tally
from launch.topology import Machine
from lm.device_order import slice_of

SLOW = "between slices"  # the network that joins slices


@dataclass(frozen=True)
class Prediction:
    """Seconds of one step, by resource. A network's name is its mesh axis."""

    step: float
    bound: str  # the resource that takes longest
    seconds: dict[str, float]  # compute, memory, and each network
    exposed: float  # seconds of exchanges that nothing runs beside
    unknown: tuple[str, ...]  # what could not be counted, in words


def predict(
    tally: Tally,
    machine: Machine,
    mesh: Mapping[str, int],
    devices: Sequence[Any],
    dtype: str,
    kernel_flops: float = 0.0,
) -> Prediction:
    """Returns the least time of a step.

    mesh and devices are those that the program numbers, in the mesh's order: one slice's where it
    treats other slices apart, else all. kernel_flops are FLOPs that run in kernels whose products
    the program's text does not show.
    """
    chip, share = machine.chip, machine.devices_per_chip
    unknown = [f"trips of the loop {name}" for name in tally.unknown_loops]
    seconds: dict[str, float] = {}
    if dtype in chip.peaks:
        work = tally.matmul_flops + kernel_flops
        seconds["compute"] = work / (chip.peaks[dtype] / share)
    else:
        unknown.append(f"the peak of {chip.name} in {dtype}")
    seconds["memory"] = tally.hbm_bytes / (chip.hbm_bandwidth / share)
    beside: dict[str, float] = defaultdict(float)
    exposed = 0.0
    slices = [slice_of(d) for d in devices]
    for what, times in tally.collectives.items():
        for axis, sent, bandwidth in _sent(what, mesh, devices, slices, machine):
            if bandwidth is None:
                unknown.append(f"the bandwidth of {chip.name} between slices")
                continue
            spent = times * sent / (bandwidth / share)
            seconds[axis] = seconds.get(axis, 0.0) + spent
            if what.overlapped:
                beside[axis] += spent
            else:
                exposed += spent
    longest = max([seconds.get("compute", 0.0), seconds["memory"], *beside.values()])
    bound = max(seconds, key=lambda name: seconds[name])
    return Prediction(longest + exposed, bound, seconds, exposed, tuple(dict.fromkeys(unknown)))


def _sent(what: Collective, mesh: Mapping[str, int], devices, slices, machine: Machine):
    """Yields (network, bytes a device sends, bytes/s of a chip) of one exchange."""
    chip = machine.chip
    if what.slow:
        yield SLOW, what.wire_bytes, chip.slow_bandwidth
        return
    if what.groups is None:
        yield "unknown", what.wire_bytes, chip.link_bandwidth
        return
    axis = what.groups.axes(mesh)
    bandwidth = _bandwidth(machine, devices, what.groups)
    n_slices = what.groups.crossing(slices)
    if axis and n_slices > 1:
        # Each device talks to its likes in the other slices about its part, then inside.
        inside = what.size // n_slices if not what.groups.pairs else 1
        part = replace(what, size=n_slices, tensor_bytes=what.tensor_bytes // inside)
        yield SLOW, part.wire_bytes, chip.slow_bandwidth
        if inside > 1:
            yield axis, replace(what, size=inside).wire_bytes, bandwidth
    elif axis:  # else a group of one
        yield axis, what.wire_bytes, bandwidth


def _bandwidth(machine: Machine, devices: Sequence[Any], groups: Groups) -> float:
    """Returns bytes/s that a chip can send to the others of its group in its slice.

    Places repeat from slice to slice, so a group over several of them reaches as far in each."""
    link = machine.chip.link_bandwidth
    if groups.pairs or not machine.chip.ring:
        return link
    members = [devices[i].coords for i in groups.members[0].tolist()]
    lanes = 0
    for dim, size in enumerate(machine.shape):
        reached = len({place[dim] for place in members})
        if reached > 1:
            lanes += 2 if reached == size and machine.is_ring(dim) else 1
    return lanes * link if lanes else machine.chip.hbm_bandwidth  # two cores of one chip


def outlook(
    prediction: Prediction,
    machine: Machine,
    dtype: str,
    step_tokens: int,
    step_flops: float,
    planned_tokens: int,
) -> dict[str, float | None]:
    """Returns what the step's time means for the run; None where a number is not published."""
    step, chip = prediction.step, machine.chip
    peak = chip.peaks.get(dtype)
    days = planned_tokens / step_tokens * step / 86400
    watts = chip.watts
    return {
        "tokens_per_second": step_tokens / step,
        "mfu": step_flops / (step * machine.n_chips * peak) if peak else None,
        "days": days,
        "chip_days": days * machine.n_chips,
        "energy_mwh": days * 24 * machine.n_chips * watts / 1e6 if watts else None,
    }
