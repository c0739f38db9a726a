"""What the documentation site adds to the pages in docs/; `make docs` builds it."""
