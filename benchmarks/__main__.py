"""`make bench`: every table, one after the other, each measured against its yardstick in the same run."""

from __future__ import annotations

import sys

from benchmarks import bundle_io, compare


def main() -> int:
    compare.main()
    print()
    bundle_io.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
