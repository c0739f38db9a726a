"""From an encoder and images to results of every code, size and seed.

OUT/results/METHOD-BITS-SEED.json    one result; a rerun computes only what is missing or has changed
OUT/units/METHOD-BITS-SEED.npy       codes of plain test images
OUT/choices/METHOD-BITS.json         options of an alternative, chosen on held-out training images
OUT/heads/BITS-SEED-KEY              run folders of our heads
OUT/codes.json, codes.md, codes.png  all results, tables and plot
"""

from __future__ import annotations

import io
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console

from imsvd.bench.codes.inputs import Inputs, Request, read_inputs
from imsvd.bench.codes.measures import measure
from imsvd.bench.codes.ours import HeadOptions, configure_head, head_config, train_ours
from imsvd.bench.codes.quantizers import BYTE, Code
from imsvd.bench.codes.report import (
    ASYMMETRIC,
    COSINE,
    OURS,
    SYMMETRIC,
    Report,
    show,
    write_report,
)
from imsvd.bench.codes.retrieval import Database, Queries, retrieval_measures
from imsvd.bench.codes.rivals import RIVALS, choose_options
from imsvd.code_measures import matched_units
from imsvd.datasets.sources import hash_listing
from imsvd.discretizing.capacity import ladder
from imsvd.discretizing.run import open_frozen
from imsvd.engine.fabric import Fabric
from imsvd.engine.hardware import launch, require_single_process
from imsvd.errors import InputError
from imsvd.evaluation.features import labeled_source
from imsvd.files import write_atomically
from imsvd.progress import clock, counted, progress_bar

METHODS = (OURS, *RIVALS)
"""Codes that can be compared; the floats are always measured."""


@dataclass(frozen=True)
class CodesSettings:
    """What to compare.

    Attributes:
        encoder: a run folder, `timm:NAME[:FILE]` or `torchvision:NAME[:FILE]`.
        data: labeled images with a training and a test split.
        out: folder of the results.
        bits: sizes of a code, multiples of 8.
        seeds: one result of every code for each.
        methods: names from `METHODS`.
        size: side of the images; the encoder's own if left out.
        cache: folder of the features; `out/features` if left out.
        judge: encoder that judges whether images of a unit are alike; `encoder` if left out.
        head: how our heads are trained.
    """

    encoder: str
    data: str
    out: Path
    bits: Sequence[int] = (16, 32, 64, 128)
    seeds: Sequence[int] = (0, 1, 2)
    methods: Sequence[str] = METHODS
    size: int | None = None
    cache: Path | None = None
    judge: str | None = None
    head: HeadOptions = field(default_factory=HeadOptions)


class Job(NamedTuple):
    """One result to compute."""

    method: str
    bits: int
    seed: int

    @property
    def key(self) -> str:
        """Name of its files."""
        return f"{self.method}-{self.bits}-{self.seed}"


def compare_codes(settings: CodesSettings, console: Console | None = None) -> Report:
    """Measure what is missing in `settings.out`, show the tables and write them."""
    console = console or Console()
    _check(settings)
    require_single_process("imsvd bench codes")
    encoder, out = open_frozen(settings.encoder, settings.size), settings.out
    about = (encoder, settings.encoder, settings.data, settings.head)
    images = len(labeled_source(settings.data, "train"))
    config = configure_head(*about, ladder(settings.bits[0], settings.head.units, images)[0], 0)
    for name in set(settings.methods) & set(RIVALS):
        RIVALS[name].require_data(max(settings.bits), images, encoder.num_features)
    fabric = launch(config.compute)
    cache = settings.cache or out / "features"
    views = (config.views, settings.head.views)
    request = Request(*about[:3], settings.judge, *views, config.compute, cache, out / "images")
    inputs = read_inputs(request, fabric, console)
    _claim(out, inputs)
    bench = _Bench(settings, inputs, fabric)
    jobs = [
        Job(method, bits, seed)
        for seed in settings.seeds
        for bits in settings.bits
        for method in settings.methods
    ]
    bench.measure_all([Job(COSINE, 0, 0), *jobs], console)
    report = bench.report(jobs)
    show(report, console)
    write_report(report, out)
    return report


def _check(settings: CodesSettings) -> None:
    for name in settings.methods:
        if name not in METHODS:
            raise InputError(f"--methods {name} is unknown; choose from {', '.join(METHODS)}.")
        if name in RIVALS:
            RIVALS[name].require(name)
    if not settings.methods:
        raise InputError(f"--methods is empty; choose from {', '.join(METHODS)}.")
    for bits in settings.bits:
        if bits < BYTE or bits % BYTE:
            raise InputError(
                f"--bits {bits} is not a multiple of {BYTE}, the bits of a cluster number of k-means "
                "and product quantization; choose sizes such as 16,32,64,128."
            )
    if not settings.seeds or min(settings.seeds) < 0:
        raise InputError("--seeds must be a number of seeds such as 3, or seeds such as 0,1,2.")


def _claim(out: Path, inputs: Inputs) -> None:
    """Note which features the results in `out` belong to; refuse those of others."""
    path = out / "inputs.json"
    if path.exists():
        stored = _read(path) or {}
        changed = [name for name, value in inputs.identity.items() if stored.get(name) != value]
        if changed:
            raise InputError(
                f"{out} holds results of other inputs (different: {', '.join(changed)}); "
                "give a new folder to --out."
            )
    else:
        _write(path, inputs.identity)


class _Bench:
    """Computes and keeps results."""

    def __init__(self, settings: CodesSettings, inputs: Inputs, fabric: Fabric) -> None:
        self.settings, self.inputs, self.fabric = settings, inputs, fabric
        self.out = settings.out

    def measure_all(self, jobs: Sequence[Job], console: Console) -> None:
        """Compute the results that are missing."""
        missing = [job for job in jobs if self._stored(job) is None]
        if len(missing) < len(jobs):
            kept = len(jobs) - len(missing)
            console.print(f"{counted(kept, 'result')} of {self.out} kept.", highlight=False)
        with progress_bar(console) as bar:
            task = bar.add_task("", total=len(missing))
            for job in missing:
                bar.update(task, description=job.key)
                began = time.monotonic()
                found = self._measure(job)
                seconds = time.monotonic() - began
                bar.advance(task)
                p10 = " / ".join(
                    f"{found[name]:.1f}" for name in (SYMMETRIC, ASYMMETRIC) if name in found
                )
                console.print(f"{job.key}: P@10 {p10} % ({clock(seconds)})", highlight=False)

    def _measure(self, job: Job) -> dict[str, Any]:
        settings, began = self._settings(job), time.monotonic()
        units: tuple[int, ...] | None = None
        if job.method == COSINE:
            found = self._measure_floats()
        else:
            code = self._fit(job, settings)
            if code.bits > job.bits:
                raise RuntimeError(f"{job.key} has codes of {code.bits} bits.")
            found, codes = measure(code, self.inputs, job.seed)
            units = code.units
            content = io.BytesIO()
            small = codes if codes.dtype == np.bool_ else codes.astype(np.int16)
            np.save(content, small, allow_pickle=False)
            write_atomically(self._units_file(job), content.getvalue())
        seconds = round(time.monotonic() - began, 2)
        record = {**job._asdict(), "units": units, "settings": settings, "seconds": seconds}
        _write(self._result_file(job), {**record, "measures": found})
        return found

    def _measure_floats(self) -> dict[str, Any]:
        train, test = self.inputs.train, self.inputs.test
        bank, queries = (F.normalize(split.plain, dim=1) for split in (train, test))
        database = Database(bank, torch.arange(len(bank)), train.labels)
        wanted = Queries(queries, test.labels, self.inputs.nearest)
        found = retrieval_measures(database, wanted, 0)
        return {f"symmetric_{name}": value for name, value in found.items()}

    def _fit(self, job: Job, settings: dict[str, Any]) -> Code:
        if job.method != OURS:
            images = np.arange(len(self.inputs.train))
            rival = RIVALS[job.method]
            return rival.fit(job.bits, settings, self.inputs.train, images, job.seed)
        # Heads of other settings stay beside each other.
        key = hash_listing([json.dumps(settings).encode()])
        folder = self.out / "heads" / f"{job.bits}-{job.seed}-{key}"
        options = self.settings.head
        return train_ours(self.inputs, options, job.bits, job.seed, folder, self.fabric)

    def _settings(self, job: Job) -> dict[str, Any]:
        """Return what a result depends on besides the features; results of others are not used."""
        if job.method == COSINE:
            return {}
        if job.method == OURS:
            return self._head_settings(job)
        path = self.out / "choices" / f"{job.method}-{job.bits}.json"
        stored = _read(path)
        if stored is None:
            choice = choose_options(RIVALS[job.method], job.bits, self.inputs.train)
            stored = choice._asdict()
            _write(path, stored)
        options: dict[str, Any] = stored["options"]
        return options

    def _head_settings(self, job: Job) -> dict[str, Any]:
        """Return the configuration of the smallest head, and the sizes to choose from."""
        head, images = self.settings.head, len(self.inputs.source)
        sizes = ladder(job.bits, head.units, images)
        config = head_config(self.inputs, head, sizes[0], job.seed)
        return config.model_dump(mode="json", exclude={"compute"}) | {
            "sizes": list(map(str, sizes))
        }

    def _stored(self, job: Job) -> dict[str, Any] | None:
        """Return a result that is complete and has the settings of now."""
        record = _read(self._result_file(job))
        if record is None or (job.method != COSINE and not self._units_file(job).exists()):
            return None
        chosen = (self.out / "choices" / f"{job.method}-{job.bits}.json").exists()
        if job.method in RIVALS and not chosen:
            return None
        return record if record["settings"] == self._settings(job) else None

    def report(self, jobs: Sequence[Job]) -> Report:
        """Gather the results, and compare the units of different seeds."""
        records = [self._stored(job) for job in (Job(COSINE, 0, 0), *jobs)]
        stability = {}
        for method, bits in dict.fromkeys((job.method, job.bits) for job in jobs):
            own = [r for r in records if r and (r["method"], r["bits"]) == (method, bits)]
            stability[method, bits] = [
                self._matched(first, second) for first, second in itertools.combinations(own, 2)
            ]
        judge = self.settings.judge or "the encoder itself"
        kept = [record for record in records if record]
        return Report(kept, stability, self.settings.encoder, judge, len(self.inputs.test))

    def _matched(self, first: dict[str, Any], second: dict[str, Any]) -> float:
        """Return the share of units that two seeds have in common, in percent."""
        codes = [np.load(self._units_file(_job(r)), allow_pickle=False) for r in (first, second)]
        matching = matched_units(codes[0], codes[1], first["units"], second["units"])
        return 100 * matching.share

    def _result_file(self, job: Job) -> Path:
        return self.out / "results" / f"{job.key}.json"

    def _units_file(self, job: Job) -> Path:
        return self.out / "units" / f"{job.key}.npy"


def _job(record: dict[str, Any]) -> Job:
    return Job(record["method"], record["bits"], record["seed"])


def _write(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of a file; None if it is not there or not readable."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content
