"""`make bench`: the tables of a few minutes, each measured against its yardstick in the same run.

`python -m benchmarks.catching` runs every injected bug under both tools, which takes a quarter of an hour;
`make bench-minify` also minifies them, and the real ones, which takes an hour and more.
"""

from __future__ import annotations

import sys

from benchmarks import bundle_io, compare, overhead


def main() -> int:
    compare.main()
    print()
    bundle_io.main()
    print()
    overhead.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
