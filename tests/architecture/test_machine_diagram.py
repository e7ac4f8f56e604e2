# SPDX-License-Identifier: Apache-2.0
"""The document of the state machine says what its tables say."""

from __future__ import annotations

from pathlib import Path

from consumerd.group.diagram import render

DOCUMENT = Path(__file__).parents[2] / "docs" / "group-machine.md"


def test_the_diagram_of_the_group_machine_is_up_to_date() -> None:
    """A diagram that is not generated lies before long; `python -m consumerd.group.diagram` renews it."""
    assert DOCUMENT.read_text() == render()
