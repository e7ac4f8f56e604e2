"""``make bench``: the whole daemon against a peer; ``python -m bench.decode``, ``bench.sinks`` and ``bench.log`` look at parts of it."""

from bench.end_to_end import main

main()
