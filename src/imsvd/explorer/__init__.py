"""Explained runs and indexes in a browser: variables, units, images, maps, training, searches."""

from imsvd.explorer.app import create_app
from imsvd.explorer.explained_run import ExplainedRun, open_run
from imsvd.explorer.serving import serve

__all__ = ["ExplainedRun", "create_app", "open_run", "serve"]
