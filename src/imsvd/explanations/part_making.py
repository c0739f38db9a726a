"""The parts of an explanation: each measures, draws and writes, and returns its headline."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imsvd.errors import InputError
from imsvd.explanations import pictures
from imsvd.explanations.discreteness import discreteness
from imsvd.explanations.encodings import Encodings, encode
from imsvd.explanations.faithfulness import FILLS, SHARE, measure_falls, summarize_falls
from imsvd.explanations.galleries import draw_sheets, gallery_listing
from imsvd.explanations.grad_cam import grad_cam
from imsvd.explanations.joint import (
    JointMatrix,
    deviations,
    leading_variables,
    most_dependent,
    mutual_information,
    theorem_properties,
)
from imsvd.explanations.meaning import known_attributes, meaning
from imsvd.explanations.pairs import Pairs, view_pairs
from imsvd.explanations.partial_pass import PartialPass
from imsvd.explanations.pictures import PairPicture, UnitMaps
from imsvd.explanations.retrieval import retrieval
from imsvd.explanations.subject import (
    Progress,
    Subject,
    evenly_spaced,
    read_pictures,
    view_probabilities,
)
from imsvd.files import write_atomically
from imsvd.information import split_variables

JOINT_PARTIAL = "joint.partial.npz"
JOINT_VARIABLES = 5
EMBEDDING_VARIABLES = 10
EMBEDDING_IMAGES = 3
CAM_UNITS = 6
CAM_IMAGES = 8
FAITHFULNESS_IMAGES = 256


def _write_json(subject: Subject, name: str, record: dict[str, Any]) -> None:
    content = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(subject.folder / name, content.encode())


def _write_array(subject: Subject, name: str, values: Tensor) -> None:
    array = io.BytesIO()
    np.save(array, values.float().numpy())
    write_atomically(subject.folder / name, array.getvalue())


@torch.no_grad()
def measure_joint(
    subject: Subject, progress: Progress | None = None, saved: PartialPass | None = None
) -> JointMatrix:
    """The joint matrix of two augmented views of every image, going on from what was `saved`."""
    joint = JointMatrix(subject.units, device=subject.device)
    before, total = 0, len(subject.source)
    if saved is not None and (state := saved.read()) is not None:
        joint.restore(state)
        before = int(state["done"])

    def tell(done: int, _: int) -> None:
        if saved is not None:
            saved.save_when_due(lambda: {**joint.state(), "done": np.array(before + done)})
        if progress is not None:
            progress(before + done, total)

    if progress is not None:
        progress(before, total)
    for pairs in view_pairs(subject, range(before, total), progress=tell):
        first, second = (view_probabilities(subject.encoder, view) for view in pairs[:2])
        joint.add(first, second)
    if not joint.count:
        raise InputError(f"none of the {total:,} images can be read; give others.")
    return joint


def explain_joint(subject: Subject, progress: Progress) -> dict[str, Any]:
    """Joint matrix, mutual information, and the theorem's five properties."""
    saved = PartialPass(subject.folder / JOINT_PARTIAL, subject.key)
    joint = measure_joint(subject, progress, saved)
    information = mutual_information(joint)
    distance = deviations(joint)
    properties = theorem_properties(joint, information, distance)
    floor = properties[-1].floor
    leading = min(JOINT_VARIABLES, len(subject.units))
    pictures.draw_joint(
        joint.leading(leading).numpy(),
        subject.units[:leading],
        joint.count,
        subject.folder / "joint_matrix.png",
    )
    path = subject.folder / "mutual_information.png"
    pictures.draw_mutual_information(information.numpy(), floor, path)
    kept = joint.leading(leading_variables(subject.units))
    _write_array(subject, "joint_matrix.npy", kept)
    _write_array(subject, "mutual_information.npy", information)
    rows = [row._asdict() for row in properties]
    _write_json(
        subject,
        "properties.json",
        {
            "images": joint.count,
            "properties": rows,
            "deviations": distance._asdict(),
            "mutual_information": {
                "mean": properties[-1].measured,
                "floor": floor,
                "with_itself_in_the_other_view": float(information.diagonal().mean()),
                "most_dependent": most_dependent(information),
            },
        },
    )
    saved.remove()
    held = sum(row.verdict == "holds" for row in properties)
    return {"images": joint.count, "properties_that_hold": held, "properties": rows}


@torch.no_grad()
def explain_embeddings(subject: Subject, progress: Progress) -> dict[str, Any]:
    """Two views of a few images and the units that the first variables take in them."""
    # More than are drawn, as some may be unreadable.
    wanted = evenly_spaced(len(subject.source), 4 * EMBEDDING_IMAGES)
    drawn: list[PairPicture] = []
    indices: list[int] = []
    progress(0, len(wanted))
    for pairs in view_pairs(subject, wanted, batch_size=1, progress=progress):
        drawn.append(_pair_picture(subject, pairs))
        indices += pairs.indices
        if len(drawn) == EMBEDDING_IMAGES:
            break
    if not drawn:
        raise InputError(f"none of {len(wanted)} images tried can be read; give others.")
    pictures.draw_embeddings(drawn, subject.folder / "embeddings.png")
    agreeing = [
        int(first.argmax()) == int(second.argmax())
        for pair in drawn
        for first, second in zip(*pair.probabilities, strict=True)
    ]
    paths = [subject.source.identity(index) for index in indices]
    return {"paths": paths, "agreement_of_those_drawn": sum(agreeing) / len(agreeing)}


def _pair_picture(subject: Subject, pairs: Pairs) -> PairPicture:
    shown, probabilities = [], []
    for view in pairs[:2]:
        pixels = (view * subject.encoder.std + subject.encoder.mean).clamp(0, 1)
        shown.append(pixels[0].permute(1, 2, 0).cpu().double().numpy())
        q = view_probabilities(subject.encoder, view)[0].cpu().double()
        parts = split_variables(q, subject.units)[:EMBEDDING_VARIABLES]
        probabilities.append([part.numpy() for part in parts])
    return PairPicture((shown[0], shown[1]), (probabilities[0], probabilities[1]))


def explain_discreteness(subject: Subject, progress: Progress) -> dict[str, Any]:
    """How one-hot the codes are, dead and over-used units, distinct codes, bits."""
    encodings = encode(subject, progress)
    record = discreteness(encodings, subject.units, progress)
    shares = encodings.marginals * np.repeat(subject.units, subject.units)
    pictures.draw_discreteness(record, shares, subject.folder / "discreteness.png")
    _write_json(subject, "discreteness.json", record)
    kept = ("share_above_0.9", "share_above_0.99", "dead_units", "overused_units", "distinct_codes")
    bits = {f"bits_{name}": record["bits"][name] for name in ("capacity", "upper", "lower")}
    return {name: record[name] for name in kept} | bits


def explain_galleries(subject: Subject, progress: Progress) -> dict[str, Any]:
    """The best images of every unit, listed and drawn as a contact sheet per variable."""
    encodings = encode(subject, progress)
    listing = gallery_listing(subject, encodings)
    sheets = draw_sheets(subject, listing, progress)
    _write_json(subject, "galleries.json", listing)
    return {"sheets": len(sheets), "images_per_unit": encodings.top_images.shape[1]}


def explain_grad_cam(subject: Subject, progress: Progress) -> dict[str, Any]:
    """Where the evidence of the surest units is in their best images."""
    encodings = encode(subject, progress)
    chosen = surest_units(encodings, subject.units, CAM_UNITS)
    drawn = []
    progress(0, len(chosen))
    for number, (variable, unit, place) in enumerate(chosen, start=1):
        best = [int(index) for index in encodings.top_images[place, :CAM_IMAGES] if index >= 0]
        found = read_pictures(subject, best)
        normalized = subject.encoder.normalize(found.images.to(subject.device))
        places = torch.full((len(normalized),), place, device=subject.device)
        maps = grad_cam(subject.encoder, normalized, places)
        title = f"variable {variable}, unit {unit}"
        drawn.append(UnitMaps(title, _as_pictures(found.images), list(maps.cpu().double().numpy())))
        progress(number, len(chosen))
    pictures.draw_grad_cam(drawn, subject.folder / "grad_cam.png")
    return {
        "units_drawn": len(chosen),
        "units": [[variable, unit] for variable, unit, _ in chosen],
    }


def _as_pictures(images: Tensor) -> list[NDArray[np.uint8]]:
    return list(images.permute(0, 2, 3, 1).numpy())


def surest_units(
    encodings: Encodings, units: tuple[int, ...], count: int
) -> list[tuple[int, int, int]]:
    """(variable, unit, place among all units) of units with the surest best images, one a variable.

    Units that show images of a surer one again come last: variables that depend on each other often
    have a unit for the same images.
    """
    sureness = encodings.top_scores[:, :CAM_IMAGES].mean(1)
    every = [(variable, unit) for variable, size in enumerate(units) for unit in range(size)]
    chosen: dict[int, int] = {}
    repeating, shown = [], set[int]()
    for place in np.argsort(-sureness, kind="stable").tolist():
        variable, _ = every[place]
        images = set(encodings.top_images[place, :CAM_IMAGES].tolist()) - {-1}
        if images & shown:
            repeating.append(place)
        elif variable not in chosen:
            chosen[variable] = place
            shown |= images
    for place in repeating:
        chosen.setdefault(every[place][0], place)
    return [(*every[place], place) for place in list(chosen.values())[:count]]


def explain_faithfulness(subject: Subject, progress: Progress) -> dict[str, Any]:
    """Whether units fade when what their maps highlight is removed, against a random region."""
    wanted = evenly_spaced(len(subject.source), FAITHFULNESS_IMAGES)
    progress(0, len(FILLS) * len(wanted))
    found = read_pictures(subject, wanted)
    falls: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
    records: dict[str, dict[str, Any]] = {}
    for number, fill in enumerate(FILLS):

        def tell(done: int, total: int, number: int = number) -> None:
            progress(number * total + done, len(FILLS) * total)

        measured = measure_falls(subject.encoder, found.images, fill, progress=tell)
        falls[fill] = (measured.highlighted, measured.moved)
        records[fill] = summarize_falls(measured)
    pictures.draw_faithfulness(falls, records, subject.folder / "faithfulness.png")
    _write_json(subject, "faithfulness.json", {"share_removed": SHARE, "fills": records})
    return {
        f"{fill}_{name}": record.get(name)
        for fill, record in records.items()
        for name in ("images", "difference", "difference_95", "verdict")
    }


def explain_meaning(subject: Subject, progress: Progress) -> dict[str, Any]:
    """What variables have to do with labels and attributes, where there are any."""
    encodings = encode(subject, progress)
    known = known_attributes(subject.source, encodings.images)
    record = meaning(encodings, known, progress)
    if known:
        pictures.draw_meaning(record, subject.folder / "meaning.png")
    _write_json(subject, "meaning.json", record)
    kept = ("attributes_known", "attributes_recovered", "recovered", "mean_best_nmi")
    return {name: record[name] for name in kept}


def explain_retrieval(subject: Subject, progress: Progress) -> dict[str, Any]:
    """Similar images by shared units against cosine similarity."""
    record = retrieval(encode(subject, progress), subject.source, progress)
    _write_json(subject, "retrieval.json", record)
    return {
        f"{way}_{name}": value
        for way in ("code", "cosine")
        for name, value in record.get(way, {}).items()
        if name in ("recall_at_1", "recall_at_10", "precision_at_10", "queries_per_second")
    }
