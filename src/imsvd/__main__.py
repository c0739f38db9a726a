"""`python -m imsvd`, and so `torchrun -m imsvd`."""

from imsvd.cli import main

if __name__ == "__main__":
    main()
