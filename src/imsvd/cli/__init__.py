"""The command line: each verb parses, calls one function and prints what a person needs."""

from imsvd.cli import training, evaluation, sharing, benchmarks  # noqa: I001 - the order of --help
from imsvd.cli.app import app, main

__all__ = ["app", "benchmarks", "evaluation", "main", "sharing", "training"]
