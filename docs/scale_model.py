"""A small model of ranks: time, bytes and memory of a step, from constants measured on one machine.

    time of a rank = m a + M² R D c + [k > 1] (messages · latency + bytes / rate),    m = ⌈M / k⌉
    bytes that come to a rank = (M − m) (R D + 3) · 4       of a coupled step (FoRDE), else 0
    memory of a rank = m P (weights, gradients, moments) + 2 M R D      numbers of 4 bytes

a is the time of one member's step, c that of one number in the kernel of the repulsion, which every
rank computes for all pairs. `constants` takes them from `results/scale.json`; `points` compares the
model with what was measured; `outlook` goes beyond. Times there are CPU times: where cores are
quiet and as many as ranks, they are wall times.

Shapes: `M` modes, `k` ranks, `m` modes of a rank, `R` inputs that repel, `D` their dimensions, `P`
parameters of a network.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any, NamedTuple

R, D, P = 128, 784, 44_426  # of the measured LeNets
COPIES = 4  # of the parameters: weights, gradients, two moments of Adam


class Constants(NamedTuple):
    """Milliseconds: of a member's step without and with repulsion, of one number of its kernel, of
    a message, and of a byte."""

    member: float
    repelled: float
    kernel: float
    latency: float
    per_byte: float


class Job(NamedTuple):
    """An ensemble: modes, ranks, whether coupled; milliseconds of a member's step on one device."""

    modes: int
    ranks: int
    coupled: bool
    member: float
    rows: int = R
    dimensions: int = D
    parameters: int = P


def value(report: dict[str, Any], point: str, name: str) -> float:
    """Return the median over rounds of what was measured."""
    return median(found[name] for found in report["rounds"][point])


def constants(report: dict[str, Any]) -> Constants:
    """Return the constants: from one process, and from messages between two."""
    five = value(report, "forde 5 on 1", "cpu_ms")
    pairs = R * D  # numbers of a pair
    kernel = value(report, "kernel 10 on 1", "cpu_ms") / (100 * pairs)
    small, large = (
        value(report, "messages on 2", f"cpu_{name}") for name in ("latency_ms", "large_ms")
    )
    return Constants(
        value(report, "deep_ensemble 5 on 1", "cpu_ms") / 5,
        (five - 25 * pairs * kernel) / 5,
        kernel,
        small,
        (large - small) / 4e6,
    )


def bytes_of(job: Job) -> int:
    """Return what comes to a rank in a step."""
    mine = math.ceil(job.modes / job.ranks)
    return (job.modes - mine) * (job.rows * job.dimensions + 3) * 4 if job.coupled else 0


def memory_of(job: Job) -> int:
    """Return the bytes of a rank, without the activations of the members that it evaluates."""
    mine = math.ceil(job.modes / job.ranks)
    numbers = mine * job.parameters * COPIES
    return 4 * (numbers + (2 * job.modes * job.rows * job.dimensions if job.coupled else 0))


def milliseconds(job: Job, known: Constants) -> float:
    """Return the time of a step of one rank."""
    taken = math.ceil(job.modes / job.ranks) * job.member
    if job.coupled:
        taken += job.modes**2 * job.rows * job.dimensions * known.kernel
        if job.ranks > 1:
            taken += 3 * known.latency + bytes_of(job) * known.per_byte
    return taken


def points(report: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Return the measured points that no constant was taken from: name, measured, model."""
    known = constants(report)
    jobs = {
        "deep_ensemble 10 on 1": Job(10, 1, False, known.member),
        "deep_ensemble 10 on 2": Job(10, 2, False, known.member),
        "forde 10 on 1": Job(10, 1, True, known.repelled),
        "forde 10 on 2": Job(10, 2, True, known.repelled),
    }
    return [
        (name, value(report, name, "cpu_ms"), milliseconds(job, known))
        for name, job in jobs.items()
    ]


class Network(NamedTuple):
    """What is extrapolated to: multiply-adds of a forward pass per example, parameters, inputs,
    steps of a training, and batch size."""

    macs: float
    parameters: int
    dimensions: int
    steps: int
    batch: int


LENET_MACS = 281_640
RESNET18 = Network(555_422_720, 11_173_962, 3072, 200 * 391, 128)  # CIFAR's form; 200 epochs
RESNET50 = Network(3.8e9, 25_557_032, 3 * 224 * 224, 90 * 5005, 256)  # He et al. 2016; 90 epochs
DEVICE = 50e12  # operations per second that a GPU is assumed to sustain
LINK = 25e9  # bytes per second between GPUs, assumed


class Outlook(NamedTuple):
    """One line beyond what was measured."""

    title: str
    job: Job
    network: Network


def core_rate(known: Constants) -> float:
    """Return the operations per second of one core in the measured LeNets: 6 per multiply-add."""
    return 6 * LENET_MACS * R / (known.member / 1000)


def outlook() -> list[Outlook]:
    """Return what is asked for: the Checkpoints set of ResNet-18, and ensembles for ImageNet."""
    lines = []
    for ranks in (2, 128, 1024):
        job = Job(9216, ranks, False, 0.0, RESNET18.batch, RESNET18.dimensions, RESNET18.parameters)
        lines.append(Outlook("9,216 ResNet-18, independent", job, RESNET18))
    for coupled, modes, ranks in ((False, 10, 10), (True, 10, 10), (True, 64, 64)):
        name = "FoRDE" if coupled else "independent"
        sizes = RESNET50.batch, RESNET50.dimensions, RESNET50.parameters
        job = Job(modes, ranks, coupled, 0.0, *sizes)
        lines.append(Outlook(f"{modes} ResNet-50 for ImageNet, {name}", job, RESNET50))
    return lines


def step_seconds(line: Outlook, rate: float, per_byte: float, known: Constants) -> float:
    """Return the time of a step where each rank does `rate` operations per second; a step with
    repulsion costs as much more as it was measured to."""
    job, network = line.job, line.network
    more = known.repelled / known.member if job.coupled else 1.0
    work = 6 * network.macs * network.batch * more
    kernel = 6 * job.modes**2 * job.rows * job.dimensions if job.coupled else 0
    return (math.ceil(job.modes / job.ranks) * work + kernel) / rate + bytes_of(job) * per_byte


# ---------------------------------------------------------------- what the page shows


def measured_rows(report: dict[str, Any]) -> list[list[str]]:
    """Return CPU time of a step, measured and by the model, with the efficiency of two ranks."""
    rows = [["LeNets, batch of 128", "measured, ms", "model, ms", "bytes to a rank", "efficiency"]]
    for name, found, model in points(report):
        came, efficiency = value(report, name, "bytes"), ""
        if name.endswith("on 2"):
            alone = value(report, name.replace("on 2", "on 1"), "cpu_ms")
            efficiency = f"{alone / (2 * found):.2f}"
        words = name.replace(" on 1", " on one rank").replace(" on 2", " on two ranks")
        rows.append([words, f"{found:.1f}", f"{model:.1f}", f"{came:,.0f}", efficiency])
    return rows


def _by_wall_time(report: dict[str, Any], busy: float) -> str:
    """Return the efficiencies by wall time, which mean something on quiet cores alone."""
    if busy > 0.1:
        return "Wall times say little on so busy a machine."
    shown = []
    for method in ("deep_ensemble", "forde"):
        one, two = (value(report, f"{method} 10 on {ranks}", "ms") for ranks in (1, 2))
        shown.append(f"{one / (2 * two):.2f} for {method}")
    return f"By wall time, waiting included, it is {' and '.join(shown)}."


def measured_text(report: dict[str, Any], fleet: dict[str, Any]) -> str:
    """Return how it was measured, and what else was."""
    every = [found for each in report["rounds"].values() for found in each]
    busy = median(found["others"] for found in every if "others" in found)
    rounds = min(len(each) for each in report["rounds"].values())
    now, before = (
        min(found["cpu_ms"] for found in report["rounds"][name])
        for name in ("small 10 on 1", "small without ranks")
    )
    known, (processes, ray) = constants(report), (fleet["processes"], fleet["ray"])
    return (
        f"CPU time per step and rank, median of {rounds} rounds, {report['cores']} cores,"
        f" {report['date'][:10]}. Other processes took {busy:.1%} of all cores meanwhile."
        " Efficiency is that of two ranks against one, by CPU time."
        f" {_by_wall_time(report, busy)} Constants:"
        f" {known.member:.2f} ms per member, {known.repelled:.2f} ms with repulsion, a message"
        f" {known.latency:.2f} ms and {1e-6 / known.per_byte:.2f} GB/s of CPU time between two"
        f" processes. In one process, a step of ten MLPs 20-16-3 takes {now:.3f} ms at best, and"
        f" took {before:.3f} ms before there were ranks, {now / before - 1:+.1%}.\n\n"
        f"{fleet['cells']:,} cells that do nothing, two workers: processes"
        f" {processes['cells_s']:.1f} s after a start of {processes['start_s']:.0f} s, Ray"
        f" {ray['cells_s']:.1f} s after {ray['start_s']:.0f} s, on a busy machine. Ray is"
        " for cells of seconds or more."
    )


def outlook_rows(report: dict[str, Any]) -> list[list[str]]:
    """Return the lines beyond what was measured, on cores as measured and on assumed GPUs."""
    known = constants(report)
    rows = [
        [
            "ensemble", "ranks", "to a rank per step", "memory of a rank", "training, such cores",
            "training, such GPUs",
        ]
    ]  # fmt: skip
    for line in outlook():
        core = step_seconds(line, core_rate(known), known.per_byte / 1000, known)
        device = step_seconds(line, DEVICE, 1 / LINK, known)
        rows.append(
            [
                line.title,
                f"{line.job.ranks:,}",
                _size(bytes_of(line.job)),
                _size(memory_of(line.job)),
                _time(core * line.network.steps),
                _time(device * line.network.steps),
            ]
        )
    return rows


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def _time(seconds: float) -> str:
    days = seconds / 86_400
    return f"{days:.2g} days" if days < 99.5 else f"{days / 365.25:,.0f} years"
