"""``make bench``: the whole daemon against a peer; ``python -m bench.decode`` and ``bench.sinks`` look at parts of it."""

from bench.end_to_end import main

main()
