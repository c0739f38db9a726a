import pytest
import torch
from torch import nn

from imsvd.losses.dissl import DISSLLoss
from imsvd.methods.dissl import DISSL, DISSLSettings
from tests.methods.networks import SAMPLES, NormFree, views

SETTINGS = DISSLSettings(
    teacher=(7,),
    classes=5,
    marginal_weight=1.5,
    invariance_weight=0.4,
    teacher_temperature=0.7,
    student_temperature=1.2,
)


def build(settings: DISSLSettings = SETTINGS) -> DISSL:
    torch.manual_seed(0)
    return DISSL(settings, NormFree()).double()


@pytest.mark.parametrize("count", [2, 4])
def test_the_teacher_reads_the_large_views_and_the_student_all(count: int) -> None:
    method = build()
    images = views(count)
    output = method(images, SAMPLES)
    features = [method.backbone(view) for view in images]
    teachers = [method.teacher(feature) for feature in features[:2]]
    students = [method.student(feature) for feature in features]
    expected = DISSLLoss(1.5, 0.4, 0.7, 1.2)(teachers, students)
    torch.testing.assert_close(output.loss, expected.loss)
    assert torch.equal(output.features[0], features[0])
    assert torch.equal(output.embedding, teachers[0])
    assert not any(view.requires_grad for view in output.features)
    assert not output.embedding.requires_grad


def test_the_student_is_linear_and_the_teacher_may_be() -> None:
    method = build(SETTINGS.model_copy(update={"teacher": ()}))
    assert isinstance(method.student, nn.Linear)
    (teacher,) = method.teacher
    assert isinstance(teacher, nn.Linear)
    assert (teacher.in_features, teacher.out_features) == (6, 5)
    assert teacher.bias is not None


def test_bounds_are_values_of_the_loss() -> None:
    method = build()
    uniform = torch.zeros(8, 5, dtype=torch.float64)
    output = method.loss([uniform] * 2, [uniform] * 2)
    bounds = method.bounds(3)
    assert float(output.loss) == pytest.approx(bounds["uniform"].pop("total"))
    values = {name: float(term) for name, term in output.terms.items()}
    assert values == pytest.approx(bounds["uniform"])
    assert bounds["ideal"]["total"] < bounds["batch_limit"]["total"] < bounds["collapsed"]["total"]
