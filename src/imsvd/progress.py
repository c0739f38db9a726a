"""The one progress bar, and how times and counts are put into words."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)


def progress_bar(console: Console, *further: ProgressColumn) -> Progress:
    """Return a bar with counts and the time remaining, gone from the screen when it is done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *further,
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def clock(seconds: float) -> str:
    """Return a duration as 2:05 or 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def counted(number: int, thing: str) -> str:
    """Return a count as "1 run" or "2 runs"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
