import pytest

from imsvd.errors import InputError
from imsvd.grid.variant import Variant, choose_variants, read_variant
from imsvd.methods import METHODS


def test_commas_inside_a_value_belong_to_it() -> None:
    found = read_variant("wide = imsvd, method.projector=[64, 128],optimizer.betas=[0.9,0.95]")
    settings = ("method.projector=[64, 128]", "optimizer.betas=[0.9,0.95]")
    assert found == Variant("wide", "imsvd", settings)
    assert str(found) == f"wide: imsvd with {', '.join(settings)}"


@pytest.mark.parametrize("text", ["", "soft", "soft=imsvd", "=imsvd,method.units=8", "soft=,a=1"])
def test_what_is_no_variant_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not NAME=METHOD,KEY=VALUE"):
        read_variant(text)


@pytest.mark.parametrize("name", ["a|b", "[bold]", "$x$", "two words", "-a"])
def test_a_name_is_plain(name: str) -> None:
    with pytest.raises(InputError, match="no name for a row"):
        read_variant(f"{name}=imsvd,method.units=8")


@pytest.mark.parametrize("name", ["vicreg", "untrained", "twice"])
def test_a_name_stands_for_one_thing(name: str) -> None:
    texts = ["twice=imsvd,method.units=8", f"{name}=imsvd,method.units=16"]
    with pytest.raises(InputError, match="a name that is taken"):
        choose_variants(["imsvd"], texts)


def test_all_methods_are_compared_unless_something_is_named() -> None:
    assert [variant.name for variant in choose_variants([], [])] == list(METHODS)
    (only,) = choose_variants([], ["soft=imsvd,method.units=8"])
    assert only.name == "soft"
    assert choose_variants(["byol", "byol"], []) == [Variant("byol", "byol")]
