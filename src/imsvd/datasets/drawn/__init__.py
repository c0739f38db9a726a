"""Images drawn on demand with known contents: `shapes` (one object each) and scenes (several)."""
