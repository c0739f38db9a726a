"""What the commands that run a grid refuse before anything is trained."""

from collections.abc import Mapping, Sequence

from imsvd.errors import InputError


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse an empty or negative choice of seeds."""
    if not seeds or min(seeds) < 0:
        raise InputError("--seeds must be a number of seeds such as 3, or seeds such as 0,1,2.")


def check_settings(settings: Sequence[str], decided_elsewhere: Mapping[str, str]) -> None:
    """Refuse a `--set` of what differs from run to run.

    Args:
        settings: as given, such as "optimizer.lr=0.3".
        decided_elsewhere: such settings, and the option that decides each.
    """
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key in decided_elsewhere:
            raise InputError(
                f"--set {key} would be the same for all runs; use {decided_elsewhere[key]} instead."
            )
