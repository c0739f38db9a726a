"""The paper's tables and figures as experiments: at its own scale, and at one that a CPU can carry."""
