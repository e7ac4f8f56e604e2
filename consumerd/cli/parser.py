# SPDX-License-Identifier: Apache-2.0
"""The command line's parser: argparse, with hints for misspelt commands and options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from consumerd.config.schema import guess

_OPTION: Final = re.compile(r"^ +(?:-\w\b[^,\n]*, )?(--[a-z][a-z-]*)", re.MULTILINE)
"""Option at the beginning of a line of help, such as ``-z CONNECT, --zookeeper CONNECT``."""
_CLOSE: Final = 0.7
"""Similarity from which a word is taken for a misspelt one: two letters in the wrong order have 0.8."""
_WRONG_CHOICE: Final = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<choices>.*)\)")


class HintingParser(argparse.ArgumentParser):
    """Parser of the command line that suggests the command or option that was probably meant."""

    def parse_known_args(  # type: ignore[override] # argparse has overloads, by the type of the namespace
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse arguments; report an unknown option with the usage of the command that it follows.

        argparse itself leaves unknown options to the outermost parser, whose usage does not show the command's options.
        """
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = _OPTION.findall(self.format_help())
            guesses = (guess(one.partition("=")[0], known, cutoff=_CLOSE) for one in unknown if one.startswith("--"))
            hint = _render_hint(next(filter(None, guesses), None))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print usage and message, with a suggestion for a misspelt word; exit with 2."""
        if match := _WRONG_CHOICE.search(message):
            # releases of Python differ in the quotation marks
            choices = [choice.strip("'") for choice in match["choices"].split(", ")]
            message += _render_hint(guess(match["word"], choices, cutoff=_CLOSE))
        super().error(message)


def _render_hint(meant: str | None) -> str:
    return "" if meant is None else f"; did you mean {meant}?"
