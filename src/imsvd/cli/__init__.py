"""The command line: every command parses its arguments, calls one function and prints the result."""

from imsvd.cli import benchmarks, evaluation, indexing, reproducing, runs, surveying, training
from imsvd.cli.app import app, main

__all__ = [
    "app",
    "benchmarks",
    "evaluation",
    "indexing",
    "main",
    "reproducing",
    "runs",
    "surveying",
    "training",
]
