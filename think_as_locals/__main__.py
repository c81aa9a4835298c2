"""`python -m think_as_locals` is `tal`."""

from think_as_locals.cli import main

if __name__ == "__main__":
    main()
