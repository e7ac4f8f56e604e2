# SPDX-License-Identifier: Apache-2.0
"""The documents of the state machines say what their tables say."""

from __future__ import annotations

from pathlib import Path

from consumerd.group import diagram
from consumerd.group.classic import diagram as classic_diagram

DOCS = Path(__file__).parents[2] / "docs"


def test_the_diagram_of_the_group_machine_is_up_to_date() -> None:
    """A diagram that is not generated lies before long; `python -m consumerd.group.diagram` renews it."""
    assert (DOCS / "group-machine.md").read_text() == diagram.render()


def test_the_diagram_of_a_coordinated_member_is_up_to_date() -> None:
    """See above; `python -m consumerd.group.classic.diagram` renews it."""
    assert (DOCS / "classic-group-machine.md").read_text() == classic_diagram.render()
