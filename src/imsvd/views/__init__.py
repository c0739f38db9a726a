"""Augmented views of images: drawn once, applied to one image or to a whole batch."""

from imsvd.views.batched import batch_views, make_views_batched
from imsvd.views.parameters import (
    ViewParameters,
    keyed_order,
    keyed_uniforms,
    sample_parameters,
)
from imsvd.views.samples import (
    Batch,
    Sample,
    make_samples,
    read_batch,
    stack_views,
    takes_fast_path,
)
from imsvd.views.settings import ViewSettings, ViewsSettings, cifar_views, paper_views
from imsvd.views.single import image_views, make_levels, make_view, normalize

__all__ = [
    "Batch",
    "Sample",
    "ViewParameters",
    "ViewSettings",
    "ViewsSettings",
    "batch_views",
    "cifar_views",
    "image_views",
    "keyed_order",
    "keyed_uniforms",
    "make_levels",
    "make_samples",
    "make_view",
    "make_views_batched",
    "normalize",
    "paper_views",
    "read_batch",
    "sample_parameters",
    "stack_views",
    "takes_fast_path",
]
