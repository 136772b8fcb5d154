"""``python -m skysieve`` and the command ``skysieve``; Ctrl-C while it is loaded ends it without a traceback."""

import sys


def main() -> None:
    """Load and run the command."""
    try:
        from skysieve.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
