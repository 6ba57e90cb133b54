"""`python -m torchrepro`."""

from torchrepro.cli import main

if __name__ == "__main__":
    main()
