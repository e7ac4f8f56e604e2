"""How numbers are said."""

import pytest

from consumerd.telemetry.wording import counted


@pytest.mark.parametrize(("count", "said"), [(0, "0 members"), (1, "1 member"), (2, "2 members")])
def test_one_is_not_many(count: int, said: str) -> None:
    """``1 members`` makes a person doubt the rest."""
    assert counted(count, "member") == said
