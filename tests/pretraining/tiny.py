"""The smallest run that still has everything: several steps and epochs, labels, kNN, a projector."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from imsvd import cli
from imsvd.config import Config, override
from imsvd.recipes import recipe

# Widths below 8 make PyTorch's channels-last convolutions corrupt memory on some CPUs.
SETTINGS = (
    "backbone.options={layers: [1, 1, 1, 1], channels: [8, 8, 8, 8], stem_type: deep, stem_width: 8}",
    "method.projector=[16, 16]",
    "method.units=4",
    "method.standardize=false",
    "method.joint=cross",
    "method.off_diagonal_weight=1",
    "code=null",
    "optimizer.warmup_epochs=1",
    "training.epochs=2",
    "training.batch_size=32",
    "training.knn_samples=100",
    "training.knn_every=1",
    "compute.accelerator=cpu",
)


def config(*settings: str, data: str | Path = "shapes:128") -> Config:
    return override(recipe("shapes"), [f"data.source={data}", *SETTINGS, *settings])


def arguments(data: str | Path, out: Path, *settings: str) -> list[str]:
    """The command line of `imsvd pretrain` for a tiny run."""
    sets = [part for setting in (*SETTINGS, *settings) for part in ("--set", setting)]
    return ["pretrain", str(data), "--recipe", "shapes", "--out", str(out), *sets]


class CommandLine:
    """Runs the real entry point in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.out = self.err = ""

    def __call__(self, arguments: Sequence[str]) -> int:
        """Return the exit code; what was printed is in `out` and `err`."""
        self._monkeypatch.setattr("sys.argv", ["imsvd", *arguments])
        self._capsys.readouterr()
        code: int | str | None = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
        self.out, self.err = self._capsys.readouterr()
        return code if isinstance(code, int) else int(code is not None)

    def refuses(self, arguments: Sequence[str], *phrases: str) -> None:
        """Assert that the command ends with exit code 2 and one sentence holding `phrases`."""
        code = self(arguments)
        assert code == 2, (code, self.err)
        assert self.err.startswith("imsvd: ")
        assert self.err.count("\n") == 1, self.err
        assert ".." not in self.err.replace("...", ""), self.err
        for phrase in phrases:
            assert phrase in self.err
