"""``python -m clusterbench.cli`` is the command, too."""

from clusterbench.cli import main

if __name__ == "__main__":
    main()
