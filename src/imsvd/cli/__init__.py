"""The command line: each verb parses, calls one function and prints what a person needs."""

from imsvd.cli import training, reproducing, evaluation, sharing, exploring, benchmarks  # noqa: I001 - the order of --help
from imsvd.cli.app import app, main

__all__ = [
    "app",
    "benchmarks",
    "evaluation",
    "exploring",
    "main",
    "reproducing",
    "sharing",
    "training",
]
