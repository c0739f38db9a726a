"""DISSL: Improving Self-Supervised Learning by Characterizing Idealized Representations
(https://arxiv.org/abs/2209.06235).

A teacher assigns every image to one of C classes. The loss makes the assignments certain and equal
for all views of an image (invariance) and the use of classes even (marginal entropy). A linear
student predicts them from another view (distillation), which makes the backbone's features linearly
decodable. Teacher and student learn together: there is no stop-gradient.

| symbol | here |
|---|---|
| t(M \\| X), s(M \\| X) | softmax of `teachers` and `students`, `(batch, classes)` logits per view |
| CE(t, s̃) | `distillation`: cross-entropy of a teacher's view with the student's other view |
| H[mean t] | `marginal_entropy` |
| CE(t, t̃) | `invariance`: cross-entropy of the teacher's two views |
| λ, β | `marginal_weight`, `invariance_weight` |

As in the authors' code, the teacher is not detached in any term, so distillation already rewards
invariant and certain assignments, whose effective weight is 1 + β; the marginal is estimated per
view and its entropies are averaged. Here the marginal is the mean over the global batch.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from imsvd.errors import InputError
from imsvd.information import at_least_float32, entropy
from imsvd.losses.base import Loss, LossOutput, global_mean


def cross_entropy(probabilities: Tensor, log_probabilities: Tensor) -> Tensor:
    """Mean over the global batch of −Σ p log q, a scalar from `(batch, classes)` each."""
    return -global_mean((probabilities * log_probabilities).sum(-1))


class DISSLLoss(Loss):
    """The loss of two or more views over the global batch.

    Args:
        marginal_weight: λ.
        invariance_weight: β.
        teacher_temperature: divisor of the teacher's logits.
        student_temperature: divisor of the student's logits.
    """

    def __init__(
        self,
        marginal_weight: float = 2.3,
        invariance_weight: float = 0.8,
        teacher_temperature: float = 0.5,
        student_temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.marginal_weight = marginal_weight
        self.invariance_weight = invariance_weight
        self.teacher_temperature = teacher_temperature
        self.student_temperature = student_temperature

    def forward(self, teachers: Sequence[Tensor], students: Sequence[Tensor]) -> LossOutput:
        """Loss of logits, `(batch, classes)` per view.

        Args:
            teachers: logits of the views that are assigned to classes, at least two.
            students: logits of the same views in the same order, and of any further ones.
        """
        _check(teachers, students)
        with torch.autocast(teachers[0].device.type, enabled=False):
            log_t = [_log_softmax(logits, self.teacher_temperature) for logits in teachers]
            log_s = [_log_softmax(logits, self.student_temperature) for logits in students]
            t = [values.exp() for values in log_t]
            distillation = _mean_over_other_views(t, log_s)
            invariance = _mean_over_other_views(t, log_t)
            marginal = torch.stack([entropy(global_mean(view)) for view in t]).mean()
            total = (
                distillation - self.marginal_weight * marginal + self.invariance_weight * invariance
            )
        terms = {
            "distillation": distillation.detach(),
            "marginal_entropy": marginal.detach(),
            "invariance": invariance.detach(),
        }
        return LossOutput(total, terms)


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    return (at_least_float32(logits) / temperature).log_softmax(-1)


def _mean_over_other_views(targets: Sequence[Tensor], predictions: Sequence[Tensor]) -> Tensor:
    """Mean cross-entropy of every target with the predictions of all views but its own."""
    pairs = itertools.product(enumerate(targets), enumerate(predictions))
    return torch.stack([cross_entropy(p, log_q) for (a, p), (b, log_q) in pairs if a != b]).mean()


def _check(teachers: Sequence[Tensor], students: Sequence[Tensor]) -> None:
    shapes = {tuple(logits.shape) for logits in (*teachers, *students)}
    if not 2 <= len(teachers) <= len(students) or len(shapes) > 1 or teachers[0].ndim != 2:
        raise InputError(
            "DISSLLoss needs equal (batch, classes) logits of two or more views, and at least as many "
            f"views for the student as for the teacher; got {len(teachers)} teacher and "
            f"{len(students)} student views of shapes {sorted(shapes)}."
        )
