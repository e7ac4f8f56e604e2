# SPDX-License-Identifier: Apache-2.0
"""Runs every ``fuzz_*.py`` beside it under atheris, a coverage-guided fuzzer; ends with 1 if one found a failure.

    python tests/fuzz/run.py --seconds 30 [messages ...]

A target has ``fuzz_one(data)``, which raises when its invariant does not hold, and ``SEEDS`` to start from. A failing
input is left as ``crash-...`` in the working folder. Atheris has no wheels for Python 3.13: there, or where it is not
installed (extra ``fuzz``), nothing is run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MAX_INPUT_BYTES = 4096


def fuzz(target: str, seconds: int, corpus: Path) -> None:
    """Run one target in this process, which atheris ends."""
    import atheris

    sys.path.insert(0, str(ROOT))
    with atheris.instrument_imports(include=["consumerd.wire"]):
        module = importlib.import_module(f"tests.fuzz.fuzz_{target}")
    for number, seed in enumerate(module.SEEDS):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [f"-max_total_time={seconds}", f"-max_len={MAX_INPUT_BYTES}", "-verbosity=0", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], module.fuzz_one)
    atheris.Fuzz()


def main() -> int:
    """Run the targets, each in a process of its own."""
    known = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.py"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="target", help=f"of {', '.join(known)} (all)")
    parser.add_argument("--seconds", type=int, default=30, help="for each target (30)")
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)  # given to the process of one target
    arguments = parser.parse_args()
    if unknown := set(arguments.targets) - set(known):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if importlib.util.find_spec("atheris") is None:
        print("fuzzing skipped: atheris is not installed; the extra 'fuzz' has it for Python below 3.13")  # noqa: T201
        return 0
    if arguments.corpus is not None:
        fuzz(arguments.targets[0], arguments.seconds, arguments.corpus)
    failed = []
    for target in arguments.targets or known:
        print(f"fuzzing {target} for {arguments.seconds} s", flush=True)  # noqa: T201
        with tempfile.TemporaryDirectory(prefix="fuzz-") as corpus:
            command = [sys.executable, __file__, target, "--seconds", str(arguments.seconds), "--corpus", corpus]
            if subprocess.run(command, check=False).returncode != 0:
                failed.append(target)
    print(f"failed: {', '.join(failed) or 'none'}")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
