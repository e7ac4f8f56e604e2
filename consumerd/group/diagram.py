# SPDX-License-Identifier: Apache-2.0
"""Generator of ``docs/group-machine.md``: the states of members and partitions, from their tables.

Run as ``python -m consumerd.group.diagram > docs/group-machine.md``. Pure but for the last line, which prints. A test
compares the file with the generated text.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import sys
import textwrap
from collections.abc import Mapping
from types import ModuleType
from typing import Final, TypeVar

from consumerd.group import transitions
from consumerd.group.transitions import (
    MEMBER_TRANSITIONS,
    PARTITION_TRANSITIONS,
    MemberState,
    MemberTrigger,
    PartitionState,
    PartitionTrigger,
)

S = TypeVar("S", bound=enum.Enum)
T = TypeVar("T", bound=enum.Enum)

_COLUMNS: Final = 120
_HEADING = """# How a member takes part in a group

For contributors who change `consumerd/group`, and for engineers who read its log. With this page you can follow each
state of a member and of a partition, and what moves it to the next.

Generated from `consumerd/group/transitions.py` by `python -m consumerd.group.diagram`; do not edit.
"""


def render() -> str:
    """Return the Markdown document about the states of members and partitions."""
    return "\n".join(
        [
            _HEADING,
            find_theory(transitions),
            "",
            "## A member",
            "",
            *draw_table(MEMBER_TRANSITIONS, MemberState.DETACHED, MemberState.STOPPED),
            "",
            *list_names(transitions, MemberState),
            "",
            "## A partition",
            "",
            *draw_table(PARTITION_TRANSITIONS, PartitionState.ABSENT, None),
            "",
            *list_names(transitions, PartitionState),
            "",
            "## What moves them",
            "",
            *list_names(transitions, MemberTrigger, all_of_them=False),
            *list_names(transitions, PartitionTrigger, all_of_them=False),
            "",
        ]
    )


def find_theory(module: ModuleType) -> str:
    """Return the docstring of a module with transition tables, without its first line."""
    return _as_markdown(inspect.cleandoc(module.__doc__ or "").split("\n\n", maxsplit=1)[1])


def draw_table(table: Mapping[tuple[S, T], S], first: S, last: S | None) -> list[str]:
    """Return the lines of a Mermaid state diagram of one transition table.

    Transitions between the same two states share an arrow.

    Args:
        first: The initial state.
        last: The final state; None if there is none.
    """
    arrows: dict[tuple[S, S], list[T]] = {}
    for (before, trigger), after in table.items():
        arrows.setdefault((before, after), []).append(trigger)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.name}"]
    lines += [
        f"    {before.name} --> {after.name}: {', '.join(trigger.value for trigger in triggers)}"
        for (before, after), triggers in arrows.items()
    ]
    if last is not None:
        lines.append(f"    {last.name} --> [*]")
    return [*lines, "```"]


def list_names(module: ModuleType, kind: type[enum.Enum], *, all_of_them: bool = True) -> list[str]:
    """Return Markdown list items of an enumeration's members, with their docstrings in the source.

    Without ``all_of_them``, members without a docstring are left out.
    """
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    said: dict[str, str] = {}
    name = ""
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                pass
            case ast.Expr(value=ast.Constant(value=str() as text)) if name:
                said[name] = f": {' '.join(_as_markdown(text).split())}"
            case _:
                pass
    shown = [member.name for member in kind if all_of_them or member.name in said]
    return [textwrap.fill(f"- `{name}`{said.get(name, '')}", _COLUMNS, subsequent_indent="  ") for name in shown]


def _as_markdown(text: str) -> str:
    return re.sub(r":\w+:`([^`]*)`", r"`\1`", text).replace("``", "`")


if __name__ == "__main__":
    sys.stdout.write(render())
