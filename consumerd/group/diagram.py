# SPDX-License-Identifier: Apache-2.0
"""Renders ``docs/group-machine.md`` from the tables.

Run as ``python -m consumerd.group.diagram > docs/group-machine.md``. Pure but for the last line. A test compares the
file with what this renders.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import sys
from collections.abc import Mapping
from typing import TypeVar

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

_HEADING = """# How a member takes part in a group

Generated from `consumerd/group/transitions.py` by `python -m consumerd.group.diagram`; do not edit.
"""


def render() -> str:
    """Return the document."""
    theory = inspect.cleandoc(transitions.__doc__ or "").split("\n\n", maxsplit=1)[1]
    return "\n".join(
        [
            _HEADING,
            _as_markdown(theory),
            "",
            "## A member",
            "",
            *_draw(MEMBER_TRANSITIONS, MemberState.DETACHED, MemberState.STOPPED),
            "",
            *_list(MemberState),
            "",
            "## A partition",
            "",
            *_draw(PARTITION_TRANSITIONS, PartitionState.ABSENT, None),
            "",
            *_list(PartitionState),
            "",
            "## What moves them",
            "",
            *_list(MemberTrigger, all_of_them=False),
            *_list(PartitionTrigger, all_of_them=False),
            "",
        ]
    )


def _draw(table: Mapping[tuple[S, T], S], first: S, last: S | None) -> list[str]:
    """Draw one table; transitions between the same two states share an arrow."""
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


def _list(kind: type[enum.Enum], *, all_of_them: bool = True) -> list[str]:
    """List an enumeration's members, each with the docstring below it in the source.

    Without ``all_of_them``, members without a docstring are left out.
    """
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(transitions)).body
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
    return [f"- `{member.name}`{said.get(member.name, '')}" for member in kind if all_of_them or member.name in said]


def _as_markdown(text: str) -> str:
    return re.sub(r":\w+:`([^`]*)`", r"`\1`", text).replace("``", "`")


if __name__ == "__main__":
    sys.stdout.write(render())
