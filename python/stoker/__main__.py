"""The command `stoker`, for those who have the package and not the binary."""

from __future__ import annotations

import signal
import sys

from . import _stoker


def main() -> int:
    # The command has its own way to stop; Python's would only raise after it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _stoker.main(["stoker", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
