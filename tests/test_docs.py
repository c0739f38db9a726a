"""What pages say of settings is what recipes have."""

import re
from pathlib import Path

import pytest

from imsvd.config import Config, setting_keys
from imsvd.methods import METHODS
from imsvd.recipes import recipe

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
FILES = (".json", ".md", ".parquet", ".png", ".py")
OPTIMIZERS = {"lars": "LARS", "sgd": "SGD", "adamw": "AdamW"}


def summary(config: Config) -> str:
    widths = "-".join(map(str, config.method.head_widths))
    optimizer, batch = OPTIMIZERS[config.optimizer.name], config.training.batch_size
    return (
        f"{widths}; {optimizer}, {config.peak_lr:g} at {batch}, {config.optimizer.weight_decay:g}"
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_a_page_and_a_true_row_in_the_table(method: str) -> None:
    assert (ROOT / f"docs/methods/{method}.md").exists()
    table = (ROOT / "docs/methods/README.md").read_text()
    if f"| [{method}]" not in table:
        pytest.skip(f"docs/methods/README.md has no row for {method} yet")
    cells = [summary(recipe(name, method)) for name in ("cifar10-cpu", "cifar10", "imagenet")]
    line = f"| [{method}]({method}.md) | {' | '.join(cells)} |"
    assert line in table.splitlines()


def test_the_readme_counts_the_methods() -> None:
    assert f"with {len(METHODS)} methods under one engine" in (ROOT / "README.md").read_text()


def test_settings_that_pages_name_exist() -> None:
    known = {*setting_keys()}
    groups = {key.partition(".")[0] for key in known if "." in key}
    for page in PAGES:
        # Both views have the same settings.
        text = page.read_text().replace("views.views.1.", "views.views.0.")
        named = re.findall(r"--set ([a-z_0-9.]+)=|`([a-z]+\.[a-z_0-9.]+)`", text)
        for key in (first or second for first, second in named):
            if key.partition(".")[0] in groups and not key.endswith((*FILES, ".")):
                # Options are timm's own.
                allowed = key in known or key in groups or key.startswith("backbone.options.")
                assert allowed, f"{page}: {key}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for address in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in address:
                assert (page.parent / address).exists(), f"{page}: {address}"
