r"""Java's regular expressions, as far as Python's ``re`` can mean the same by them.

Pure. Members of a group must agree on which topics an expression matches, so an expression is read here token by token
and written again for Python. What means the same passes; what can be said otherwise is translated (``\Q..\E``,
``(?<name>..)``, ``\z``, ``\Z``, flags at the start of a group, possessive quantifiers and atomic groups, which Python
has since 3.11); what cannot is refused: ``\p{..}``, intersections and unions of character classes, and what Java itself
refuses but Python would take literally, such as ``a{2|3}``. Python's ASCII mode stands for Java's default, in which
``\w``, ``\d`` and ignoring case are of ASCII only. Source: the documentation of ``java.util.regex.Pattern``.
"""

from __future__ import annotations

import re
from typing import Final

_SAME_ESCAPES: Final = frozenset("dDwWsSbBtnrfaA")
"""Escapes by a letter that mean the same in both (in ASCII mode); within a class without b, B and A."""
_NOT_IN_CLASS: Final = frozenset("bBA")
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{[0-9]{1,9}(?:,(?:[0-9]{1,9})?)?\})[+?]?")
_GROUP: Final = re.compile(
    r"\((?:\?(?:[:=!>]|<[=!]|<(?P<name>[a-zA-Z][a-zA-Z0-9]*)>|(?P<flags>[a-zA-Z-]+)(?P<end>[:)])))?"
)
_FLAGS: Final = re.compile(r"[ims]+|[ims]*-[ims]+")
_HEX: Final = {"x": 2, "u": 4}


class UnsupportedPattern(ValueError):
    """The expression is no Java expression, or none that can be evaluated here; the message says what to change."""


def compile_java(expression: str) -> re.Pattern[str]:
    """Compile a Java expression for ``fullmatch``. Raises UnsupportedPattern, and nothing else."""
    translated = _Translator(expression).translate()
    try:
        return re.compile(translated, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsupportedPattern(f"{expression!r}: {error}") from error


class _Translator:
    """One pass over an expression; ``_at`` is where the next token begins."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._out: list[str] = []
        self._closers: list[str] = []
        """What closes each open group: more than one parenthesis where flags opened another within it."""

    def translate(self) -> str:
        self._closers.append("")
        self._flags_at_start()
        while self._at < len(self._text):
            self._token()
        if len(self._closers) > 1:
            raise self._refuse("a group is not closed")
        return "".join(self._out) + self._closers.pop()

    def _refuse(self, what: str, instead: str = "") -> UnsupportedPattern:
        hint = f"; {instead}" if instead else ""
        return UnsupportedPattern(f"{self._text!r}: {what} at character {self._at}{hint}")

    def _token(self) -> None:
        char = self._text[self._at]
        if char == "\\":
            self._out.append(self._escape(in_class=False))
        elif char == "[":
            self._class()
        elif char == "(":
            self._open_group()
        elif char == ")":
            if len(self._closers) == 1:
                raise self._refuse("a parenthesis that closes nothing")
            self._at += 1
            self._out.append(")" + self._closers.pop())
        elif char in "*+?{":
            self._quantifier()
        elif char in ".^$|":
            self._at += 1
            self._out.append(char)
        else:
            self._at += 1
            self._out.append(re.escape(char))

    def _quantifier(self) -> None:
        match = _QUANTIFIER.match(self._text, self._at)
        if match is None:
            raise self._refuse(
                "'{' begins no repetition", "write a repetition as {n}, since Java rewrites ',' to '|', or escape it"
            )
        self._at = match.end()
        self._out.append(match[0])

    def _open_group(self) -> None:
        match = _GROUP.match(self._text, self._at)
        assert match is not None  # it matches a lone parenthesis
        if match[0] == "(" and self._text.startswith("(?", self._at):
            raise self._refuse("a kind of group that is not supported")
        if match["flags"] is not None:
            self._flagged_group(match)
            return
        self._at = match.end()
        self._out.append(f"(?P<{match['name']}>" if match["name"] else match[0])
        self._closers.append("")
        self._flags_at_start()

    def _flagged_group(self, match: re.Match[str]) -> None:
        if match["end"] == ")":
            raise self._refuse("flags in the middle of a group", "put them at its start, or write (?i:...)")
        if not _FLAGS.fullmatch(match["flags"]):
            raise self._refuse(f"flags {match['flags']!r}", "only i, m and s can be used")
        self._at = match.end()
        self._out.append(match[0])
        self._closers.append("")
        self._flags_at_start()

    def _flags_at_start(self) -> None:
        """Take ``(?i)`` at the start of a group, where it concerns all of it: so it can be a group of its own."""
        while (match := _GROUP.match(self._text, self._at)) and match["flags"] is not None and match["end"] == ")":
            if not _FLAGS.fullmatch(match["flags"]):
                raise self._refuse(f"flags {match['flags']!r}", "only i, m and s can be used")
            self._at = match.end()
            self._out.append(f"(?{match['flags']}:")
            self._closers[-1] += ")"

    def _escape(self, *, in_class: bool) -> str:
        text, start = self._text, self._at
        if start + 1 >= len(text):
            raise self._refuse("a backslash at the end")
        char = text[start + 1]
        self._at = start + 2
        if char in _HEX:
            digits = text[self._at : self._at + _HEX[char]]
            if len(digits) < _HEX[char] or not re.fullmatch("[0-9a-fA-F]+", digits):
                self._at = start
                raise self._refuse(f"\\{char} needs {_HEX[char]} hexadecimal digits")
            self._at += _HEX[char]
            return re.escape(chr(int(digits, 16)))
        if char in _SAME_ESCAPES and not (in_class and char in _NOT_IN_CLASS):
            return f"\\{char}"
        if not in_class and char in "zZ":
            # a name has no line end, but \Z of Java would stand before one, and $ does in both
            return r"\Z" if char == "z" else r"(?=\n?\Z)"
        if not in_class and char == "Q":
            end = text.find("\\E", self._at)
            quoted = text[self._at :] if end < 0 else text[self._at : end]
            self._at = len(text) if end < 0 else end + 2
            return re.escape(quoted)
        if not in_class and char in "123456789":
            # Java reads further digits as long as such a group exists, Python by rules of its own
            if text[self._at : self._at + 1].isdigit():
                self._at = start
                raise self._refuse("a back reference of two digits")
            return f"(?:\\{char})"
        if char.isascii() and char.isalnum():
            self._at = start
            raise self._refuse(f"\\{char}", "spell it out as a character class such as [a-z]")
        return re.escape(char)

    def _class(self) -> None:
        text = self._text
        self._at += 1
        self._out.append("[")
        if text.startswith("^", self._at):
            self._at += 1
            self._out.append("^")
        if text.startswith("]", self._at):
            raise self._refuse("']' at the start of a character class", r"escape it as \]")
        while True:
            if self._at >= len(text):
                raise self._refuse("a character class is not closed")
            char = text[self._at]
            if char == "]":
                self._at += 1
                self._out.append("]")
                return
            if char == "[":
                raise self._refuse("a class within a class", r"write one class, or escape it as \[")
            if text.startswith("&&", self._at):
                raise self._refuse("an intersection of classes", "write the characters out")
            if char == "\\":
                self._out.append(self._escape(in_class=True))
                continue
            if text.startswith("--", self._at):
                raise self._refuse("'--' in a character class", r"escape it as \-")
            self._at += 1
            self._out.append(char if char == "-" else re.escape(char))
