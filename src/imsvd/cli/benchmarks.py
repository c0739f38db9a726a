"""`imsvd bench …`: one command per benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imsvd.cli.app import (
    Data,
    Run,
    Seeds,
    Sets,
    Splits,
    argument,
    bench,
    console,
    name_list,
    number_or_auto,
    option,
    print_path,
    whole_numbers,
)
from imsvd.errors import InputError

Repeats = Annotated[int, option("N", "Rounds; each measures every case once, in a fresh process.")]
Output = Annotated[
    Path | None, option("FILE", "Also write the results to this path, as .json and .md.")
]


@bench.command("loss")
def bench_loss(
    sizes: Annotated[
        str, option("N,N …", "Batch sizes and widths to measure.")
    ] = "256,8160 2048,8160 2048,16320 512,65280",
    ranks: Annotated[str, option("N,…", "Numbers of gloo processes that share the batch.")] = "1",
    repeats: Repeats = 3,
    output: Output = None,
) -> None:
    """Compare time and memory of the IMSVD loss with its lower bound, its dense form and its peers."""
    from imsvd.bench.loss import run  # noqa: PLC0415

    run(_number_pairs(sizes), whole_numbers(ranks), repeats, console, output=output)


@bench.command("heads")
def bench_heads(
    batch: Annotated[int, option("N", "Images per step, over all processes.")] = 2048,
    widths: Annotated[
        str,
        option("N,… N,…", "Layer widths of IMSVD's projector, then of VICReg's and Barlow Twins'."),
    ] = "8192,8160 8192,8192,8192",
    repeats: Repeats = 1,
    output: Output = None,
) -> None:
    """Compare projector and loss of IMSVD, VICReg and Barlow Twins, alone and in a whole step."""
    from imsvd.bench.heads import run  # noqa: PLC0415

    run(batch, _width_lists(widths), repeats, console, output)


@bench.command("head")
def bench_head(
    images: Annotated[int, option("N", "Images in the file of features.")] = 100_000,
    width: Annotated[int, option("N", "Width of the features.")] = 1280,
    views: Annotated[int, option("N", "Augmented views per image.")] = 2,
    in_memory: Annotated[int, option("N", "Images that are held in memory to compare.")] = 20_000,
    folder: Annotated[
        Path | None, option("FOLDER", "Where to write the features. Default: the temporary folder.")
    ] = None,
    repeats: Repeats = 1,
    output: Output = None,
) -> None:
    """Time an epoch of the head of `imsvd discretize` on synthetic features, and its peak memory."""
    from imsvd.bench.head import run  # noqa: PLC0415

    run(images, width, views, repeats, console, output, in_memory=in_memory, folder=folder)


@bench.command("views")
def bench_views(
    images: Annotated[Path, argument("FOLDER", "Folder of full-size JPEG photographs.")],
    small: Annotated[
        Path | None, option("FOLDER", "Folder of small images, such as CIFAR-10.")
    ] = None,
    seconds: Annotated[float, option("SECONDS", "Processor time of one measurement.")] = 3,
    repeats: Repeats = 3,
    output: Output = None,
) -> None:
    """Compare images per second and core through our augmentation and its alternatives."""
    from imsvd.bench.views import run  # noqa: PLC0415

    run(images, small, seconds, console, output, repeats=repeats)


@bench.command("step")
def bench_step(
    networks: Annotated[str, option("NAME,…", "Networks: small, resnet18.")] = "small,resnet18",
    seconds: Annotated[float, option("SECONDS", "Minimum duration of one measurement.")] = 5,
    beside: Annotated[
        int | None,
        option("N", "Measure instead how fast training is beside N busy processes, and alone."),
    ] = None,
    repeats: Repeats = 3,
    output: Output = None,
) -> None:
    """Compare a whole training step on small images with a loop written with lightly."""
    from imsvd.bench import beside as neighbors  # noqa: PLC0415
    from imsvd.bench import step  # noqa: PLC0415

    if beside is not None:
        neighbors.run(beside, name_list(networks), seconds, repeats, console, output)
    else:
        step.run(name_list(networks), seconds, repeats, console, output)


@bench.command("knn")
def bench_knn(
    queries: Annotated[int, option("N", "Number of query features.")] = 10_000,
    bank: Annotated[int, option("N", "Number of features searched.")] = 200_000,
    width: Annotated[int, option("N", "Width of the features.")] = 512,
    neighbors: Annotated[int, option("N", "Neighbors per query.")] = 200,
    repeats: Repeats = 3,
    output: Output = None,
) -> None:
    """Compare our exact nearest-neighbor search with torch.topk, faiss and scikit-learn."""
    from imsvd.bench.knn import run  # noqa: PLC0415

    run(queries, bank, width, neighbors, repeats, console, output)


@bench.command("capacity")
def bench_capacity(
    encoder: Annotated[str, argument("ENCODER", "Encoder, as for `imsvd discretize`.")],
    data: Splits,
    *,
    out: Annotated[
        Path, option("FOLDER", "Folder for results; run the command again to resume it.")
    ],
    size: Annotated[
        int | None, option("N", "Side of the images in pixels. Default: the encoder's own.")
    ] = None,
    cache: Annotated[
        Path | None, option("FOLDER", "Folder for features. Default: features in --out.")
    ] = None,
    views: Annotated[int, option("N", "Augmented views per training image.")] = 4,
    steps: Annotated[int, option("N", "Smallest number of training steps of a head.")] = 400,
    settings: Sets = None,
) -> None:
    """Train codes of every size and compare the one chosen without labels with the best."""
    from imsvd.bench.codes.ours import HeadOptions  # noqa: PLC0415
    from imsvd.bench.codes.sizes import compare_sizes  # noqa: PLC0415

    head = HeadOptions(None, views, steps, tuple(settings or ()))
    compare_sizes(encoder, data, out, size=size, cache=cache, head=head, console=console)
    print_path("Table", out / "capacity.md")


@bench.command("codes")
def bench_codes(  # noqa: PLR0913 - its options are its interface
    encoder: Annotated[
        str,
        argument("ENCODER", "Run folder, or timm:NAME[:FILE] or torchvision:NAME[:FILE]."),
    ],
    data: Splits,
    *,
    out: Annotated[
        Path, option("FOLDER", "Folder for results; run the command again to add to them.")
    ],
    bits: Annotated[str, option("N,…", "Sizes of a code, multiples of 8.")] = "16,32,64,128",
    seeds: Seeds = "3",
    methods: Annotated[
        str,
        option("NAME,…", "Codes to compare: imsvd, itq, pq, residual, kmeans, lsh, directed, sae."),
    ] = "imsvd,itq,pq,residual,kmeans,lsh,directed,sae",
    size: Annotated[
        int | None, option("N", "Side of the images in pixels. Default: the encoder's own.")
    ] = None,
    cache: Annotated[
        Path | None, option("FOLDER", "Folder for features. Default: features in --out.")
    ] = None,
    judge: Annotated[
        str | None,
        option(
            "ENCODER", "Encoder that judges whether images of a unit are alike. Default: ENCODER."
        ),
    ] = None,
    units: Annotated[
        str, option("N", "Units of a variable of our code, a power of two; auto chooses.")
    ] = "auto",
    views: Annotated[int, option("N", "Augmented views per training image.")] = 4,
    steps: Annotated[int, option("N", "Smallest number of training steps of our heads.")] = 400,
    settings: Sets = None,
) -> None:
    """Compare our code with PCA + ITQ, product quantization, k-means and others at equal bits."""
    from imsvd.bench.codes import CodesSettings, compare_codes  # noqa: PLC0415
    from imsvd.bench.codes.ours import HeadOptions  # noqa: PLC0415

    chosen = whole_numbers(seeds) if "," in seeds else tuple(range(whole_numbers(seeds)[0]))
    benchmark = CodesSettings(
        encoder=encoder,
        data=data,
        out=out,
        bits=tuple(dict.fromkeys(whole_numbers(bits))),
        seeds=tuple(dict.fromkeys(chosen)),
        methods=tuple(dict.fromkeys(name_list(methods))),
        size=size,
        cache=cache,
        judge=judge,
        head=HeadOptions(number_or_auto("--units", units), views, steps, tuple(settings or ())),
    )
    compare_codes(benchmark, console)
    print_path("Results", out / "codes.md")


@bench.command("drift")
def bench_drift(
    run: Run,
    data: Splits,
    images: Annotated[int, option("N", "Number of test images.")] = 2500,
    sizes: Annotated[str, option("N,…", "Images of each of the two sets.")] = "100,400",
    nulls: Annotated[int, option("N", "Draws without a shift.")] = 1000,
    trials: Annotated[int, option("N", "Draws with each shift.")] = 200,
    output: Output = None,
) -> None:
    """Measure false alarms and power of `imsvd drift`, against MMD on features."""
    from imsvd.bench import drift  # noqa: PLC0415

    settings = drift.DriftSettings(images, whole_numbers(sizes), nulls, trials)
    drift.run(run, data, settings, console, output)


@bench.command("select")
def bench_select(
    run: Run,
    data: Splits,
    counts: Annotated[str, option("N,…", "Numbers of labeled images.")] = "100",
    seeds: Annotated[int, option("N", "Number of seeds.")] = 10,
    output: Output = None,
) -> None:
    """Compare linear probes on labels chosen by `imsvd select`, at random, and by k-center."""
    from imsvd.bench.select import run as measure  # noqa: PLC0415

    measure(run, data, whole_numbers(counts), seeds, console, output)


@bench.command("duplicates")
def bench_duplicates(
    run: Run,
    data: Data,
    copies: Annotated[int, option("N", "Images that get an edited copy.")] = 120,
    seed: Annotated[int, option("N", "Seed of the choice of images and edits.")] = 0,
    output: Output = None,
) -> None:
    """Plant edited copies among images; compare `imsvd duplicates` with perceptual hashes and cosine."""
    from imsvd.bench.duplicates import run as measure  # noqa: PLC0415

    measure(run, data, copies, seed, console, output)


@bench.command("queries")
def bench_queries(
    index: Annotated[Path, argument("INDEX", "Index of images with attributes, such as shapes.")],
    seed: Annotated[int, option("N", "Seed of the half of the images that names units.")] = 0,
    output: Output = None,
) -> None:
    """Name units by the attributes that they recover, and measure searches for "A and not B"."""
    from imsvd.bench.queries import run  # noqa: PLC0415

    run(index, seed, console, output)


@bench.command("index")
def bench_index(
    index: Annotated[Path, argument("INDEX", "Index from whose codes many more are drawn.")],
    images: Annotated[int, option("N", "Number of images.", min=1000)] = 1_000_000,
    variables: Annotated[int, option("N", "Variables of each.", min=3)] = 64,
    repeats: Repeats = 1,
    output: Output = None,
) -> None:
    """Compare queries, likeness and near-duplicates in a large index with faiss and NumPy."""
    from imsvd.bench.index import run  # noqa: PLC0415

    run(index, images, variables, repeats, console, output)


@bench.command("campaign")
def bench_campaign(
    out: Annotated[
        Path, option("FOLDER", "Folder for tries and table; run the command again to add to them.")
    ],
    tries: Annotated[int, option("N", "Tries of every kind on every command.")] = 50,
    only: Annotated[
        str,
        option(
            "KIND,…",
            "Kinds of bad days: kills, checkpoints, disk, read-only, images, memory, clock, hosts, across. "
            "Default: all.",
        ),
    ] = "",
    commands: Annotated[
        str, option("NAME;…", "Commands to try, as the table names them. Default: all.")
    ] = "",
    seed: Annotated[int, option("N", "Random seed of moments and damages.")] = 0,
) -> None:
    """Kill, damage and starve commands on purpose; count wrong results and lost runs."""
    from imsvd.bench.campaign.run import run_campaign  # noqa: PLC0415
    from imsvd.bench.campaign.tries import LOSSES  # noqa: PLC0415

    named = [name.strip() for name in commands.split(";") if name.strip()]
    rows = run_campaign(
        out, tries=tries, only=name_list(only), commands=named, seed=seed, console=console
    )
    print_path("Table", out / "campaign.md")
    if any(row[verdict] for row in rows for verdict in LOSSES):
        raise typer.Exit(1)


def _number_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Parse a list of sizes such as "256,8160 2048,8160"."""
    pairs = tuple(whole_numbers(pair) for pair in text.split())
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise InputError(f"{text!r} is not a list of sizes such as '256,8160 2048,8160'.")
    return tuple((pair[0], pair[1]) for pair in pairs)


def _width_lists(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Parse the layer widths of two projectors, such as "8192,8160 8192,8192,8192"."""
    lists = [whole_numbers(part) for part in text.split()]
    if len(lists) != 2:
        raise InputError(f"{text!r} is not two lists of widths such as '8192,8160 8192,8192,8192'.")
    return lists[0], lists[1]
