# SPDX-License-Identifier: Apache-2.0
"""Output of JSON documents: to stdout, or to the file of ``--output``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from consumerd.errors import ConfigError


def add_output_option(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--output``."""
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it there instead of to stdout")


def print_document(text: str, output: Path | None, *, content: str) -> None:
    """Print a document, or write it to a file.

    Raises ConfigError if the file cannot be written.

    Args:
        output: Value of ``--output``; None for stdout.
        content: What a file then holds, for stderr, such as ``3 positions``.
    """
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written: {error.strerror} (--output)") from error
    sys.stderr.write(f"consumerd: {content} in {output}\n")
