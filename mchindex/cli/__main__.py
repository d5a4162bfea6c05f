"""`python -m mchindex.cli` runs `mch`."""

from mchindex.cli import main

if __name__ == "__main__":
    main()
