import pytest
from pydantic import ValidationError

from imsvd.views import ViewSettings, ViewsSettings, cifar_views, paper_views


def test_paper_views_are_the_reference_ones() -> None:
    first, second = paper_views().views
    assert (first.blur_probability, first.solarize_probability) == (1.0, 0.0)
    assert (second.blur_probability, second.solarize_probability) == (0.1, 0.2)
    for view in (first, second):
        assert view.size == 224
        assert view.crop_scale == (0.08, 1.0)
        assert (view.brightness, view.contrast, view.saturation, view.hue) == (0.4, 0.4, 0.2, 0.1)
        assert (view.flip_probability, view.jitter_probability) == (0.5, 0.8)
        assert view.gray_probability == 0.2
        assert view.interpolation == "bilinear"


def test_cifar_views_are_the_released_ones() -> None:
    first, second = cifar_views().views
    assert first == second
    assert first.size == 32
    assert first.crop_scale == (0.2, 1.0)
    assert (first.brightness, first.contrast, first.saturation, first.hue) == (0.4, 0.4, 0.4, 0.1)
    assert (first.blur_probability, first.solarize_probability) == (0.0, 0.0)


@pytest.mark.parametrize("views", [paper_views(), cifar_views(48)])
def test_settings_survive_json(views: ViewsSettings) -> None:
    assert ViewsSettings.model_validate_json(views.model_dump_json()) == views


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"crop_scale": (0.9, 0.2)}, r"crop_scale is \(0.9, 0.2\): the smaller value"),
        ({"crop_scale": (0.2, 1.5)}, r"crop_scale ends at 1.5: a crop cannot exceed"),
        ({"crop_scale": (0.0, 1.0)}, r"crop_scale.0\n.*greater than 0.*input_value=0.0"),
        ({"crop_ratio": (2.0, 1.0)}, r"crop_ratio is \(2.0, 1.0\): the smaller value"),
        ({"blur_sigma": (2.0, 0.1)}, r"blur_sigma is \(2.0, 0.1\): the smaller value"),
        ({"flip_probability": 1.2}, r"flip_probability\n.*equal to 1 .*input_value=1.2"),
        ({"brightness": -0.1}, r"brightness\n.*input_value=-0.1"),
        ({"hue": 0.6}, r"hue\n.*0.5 .*input_value=0.6"),
        ({"std": (1.0, 0.0, 1.0)}, r"std.1\n.*input_value=0.0"),
        ({"size": 4}, r"size\n.*equal to 8 .*input_value=4"),
        ({"interpolation": "nearest"}, r"interpolation\n.*input_value='nearest'"),
        ({"sharpness": 1.0}, r"sharpness\n.*not permitted"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ViewSettings.model_validate({"size": 32, **changes})


def test_one_view_is_not_enough() -> None:
    with pytest.raises(ValidationError, match="views has 1 entries: at least two"):
        ViewsSettings(views=(ViewSettings(size=32),))


def test_local_views_follow_the_large_ones() -> None:
    views = paper_views(224).model_copy(update={"local_views": 3})
    assert views.model_copy(update={"local_size": 64}).every[4].size == 64
    assert [view.size for view in views.every] == [224, 224, 96, 96, 96]
    assert views.every[2].crop_scale == (0.05, 0.14)
    assert views.every[2].blur_probability == views.views[0].blur_probability
