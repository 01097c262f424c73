"""`python -m benchmarks`: see README.md in this directory."""

import sys
from importlib import import_module

from attnpy._bench import restart

from .children import QUIET

COMMANDS = {"report": "pages"}
COMMANDS |= {name: name for name in ("bounds", "compare", "experiments")}


def main(arguments):
    restart(QUIET)  # OpenBLAS looks when NumPy is loaded: attnpy has done that
    module = COMMANDS.get(arguments[0]) if arguments else None
    rest = arguments[1:] if module else arguments
    import_module(f".{module or 'run'}", __package__).main(rest)


if __name__ == "__main__":
    main(sys.argv[1:])
