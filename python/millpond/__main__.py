"""The command: `millpond ...` and `python -m millpond ...` are the program in this package, with
the same process."""

import os
import sys

from ._native import command_path


def main():
    program = command_path()
    try:
        os.execv(program, ["millpond", *sys.argv[1:]])
    except OSError as why:
        print(f"millpond: {program} cannot be run: {why.strerror}", file=sys.stderr)
        return 4


if __name__ == "__main__":
    sys.exit(main())
