"""Many training runs as one resumable unit: planned, deduplicated, run in processes, tabulated."""
