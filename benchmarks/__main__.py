"""`python -m benchmarks`: see README.md in this directory."""

import os
import sys

from .children import QUIET

os.environ.update(QUIET)  # before NumPy or PyTorch is imported


def main(arguments):
    command, *rest = arguments or [""]
    if command == "compare":
        from .compare import main as compare

        compare(rest)
    elif command == "experiments":
        from .experiments import main as experiments

        experiments(rest)
    elif command == "report":
        from .pages import main as report

        report(rest)
    else:
        from .run import main as run

        run(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
