"""`python -m mchindex.cli` is `mch`."""

from mchindex.cli import main

if __name__ == "__main__":
    main()
