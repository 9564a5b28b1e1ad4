"""``python -m clusterbench`` is the command ``clusterbench`` of the copy that Python finds first."""

from clusterbench.cli import main

main()
