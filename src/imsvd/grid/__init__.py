"""Many runs as one undertaking: planned, deduplicated, run, resumed and tabulated."""
