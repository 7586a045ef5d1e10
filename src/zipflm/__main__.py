"""`python -m zipflm`, so that `torchrun -m zipflm train ...` works."""

from zipflm.cli import main

if __name__ == "__main__":
    main()
