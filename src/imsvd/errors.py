"""The exceptions that are not defects: unusable input, and a request to stop."""

import signal


class InputError(ValueError):
    """What the user gave cannot be used.

    The message is one sentence a person can act on: it names the file, key or value and the
    remedy. The command line prints it without a traceback and exits with code 2.
    """


class DivergedError(InputError):
    """A loss is no longer a finite number."""


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """A signal asked the program to stop, and it has saved what it had."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.exit_code = 128 + signal_number
