# SPDX-License-Identifier: Apache-2.0
"""Generator of the document about the states of a broker-coordinated member.

``python -m consumerd.group.classic.diagram`` prints the document. It is made from the transition table.
"""

from __future__ import annotations

import sys

from consumerd.group.classic import transitions
from consumerd.group.classic.transitions import TRANSITIONS, ClassicState, Trigger
from consumerd.group.diagram import draw_table, find_theory, list_names

_HEADING = """# How a member takes part in a group that brokers coordinate

For contributors who change `consumerd/group/classic`, and for engineers who read its log. With this page you can follow
each state of a member, and what moves it to the next. [group-machine.md](group-machine.md) has the states of a group
that ZooKeeper keeps.

Generated from `consumerd/group/classic/transitions.py` by `python -m consumerd.group.classic.diagram`; do not edit.
"""


def render() -> str:
    """Return the Markdown document about a broker-coordinated member's states."""
    return "\n".join(
        [
            _HEADING,
            find_theory(transitions),
            "",
            "## A member",
            "",
            *draw_table(TRANSITIONS, ClassicState.UNJOINED, ClassicState.STOPPED),
            "",
            *list_names(transitions, ClassicState),
            "",
            "## What moves it",
            "",
            *list_names(transitions, Trigger, all_of_them=False),
            "",
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(render())
