"""How the numbers of a report are measured, in short; docs/explanations.md has it at length."""

from __future__ import annotations

from typing import NamedTuple


class Method(NamedTuple):
    """How one part is measured."""

    title: str
    text: str


METHODS = {
    "joint": Method(
        "Joint matrix and the five properties",
        "Two augmented views of every readable image, made as in training, go through the network "
        "in evaluation mode. P is the mean over images of the products of their probabilities. "
        "The floor is what variables as sure as these would show on so few images if the promise held: "
        "independent ones seem to share about v² / 2N nats, v being the sum of var q / mean q over "
        "units, which is D − 1 for codes that are one-hot and even. Properties whose ideal is "
        "1 hold from 0.9 on and partly "
        "from 0.5 on. Of those whose ideal is 0, what exceeds the floor counts: up to 0.1 they "
        "hold, up to 0.5 partly; mutual information is counted in units of ½ ln D. "
        "Where the floor is larger than that unit, there are too few images to tell.",
    ),
    "embeddings": Method(
        "Two views",
        "A few images, spread evenly over the data, in the two views that the training's "
        "augmentation makes of them. q is the probability of each unit.",
    ),
    "discreteness": Method(
        "Discreteness and bits",
        "Whole images, not augmented views: these shares may differ from those of the five "
        "properties. A unit is dead when its mean probability is below a hundredth of the even "
        "share, over-used above three times the even share. The bits that codes hold are "
        "bracketed: at least the entropy of the codes that were seen, which cannot exceed log2 of "
        "the number of images; at most the entropy of the tree of the pairs of variables that "
        "share most (Chow and Liu), with Miller and Madow's correction and less "
        "what shuffled values share.",
    ),
    "galleries": Method(
        "Galleries",
        "For every unit the images with its highest probability, over all images.",
    ),
    "grad_cam": Method(
        "Grad-CAM",
        "The gradient of the unit's log-probability with respect to the last spatial features "
        "weighs their channels; the positive part of the weighted sum is the map.",
    ),
    "faithfulness": Method(
        "Faithfulness",
        "In each image the quarter that the map of one unit highlights is replaced by the mean "
        "color, or by a blur. The control is the same region moved to random places, four times. "
        "The interval is a 95 % bootstrap over images.",
    ),
    "meaning": Method(
        "Meaning",
        "Normalized mutual information, 2 I / (H + H), of a variable's codes with an attribute: 0 "
        "when one tells nothing of the other, 1 when each tells the other fully. By luck is what "
        "the best of all variables reaches with the attribute shuffled. An attribute is recovered "
        "when a variable exceeds that by 0.3. The tree is learned on every second image and tested "
        "on the others.",
    ),
    "retrieval": Method(
        "Retrieval",
        "Some images ask, and the others are ranked by the number of variables that take the same "
        "unit, or by the cosine of their features. Recall@k is the share of queries with their own "
        "label among the k nearest, precision@k the share of those k that have it; the query "
        "itself is left out. Queries per second are those of one machine at one moment.",
    ),
}
"""By part, in the order of the page."""
