"""Objectives: tensors in, a loss and its named terms out."""
