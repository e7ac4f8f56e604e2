# SPDX-License-Identifier: Apache-2.0
"""What the embedded broker is compared with is what real brokers still answer."""

from __future__ import annotations

import pytest

from tests.interop.conftest import require
from tests.support import broker_script


@pytest.mark.smoke
def test_real_brokers_answer_as_recorded(release: str) -> None:
    """A recording that nobody can repeat would be an opinion."""
    require(release)
    imitated = next(name for name, real in broker_script.REAL.items() if real == release)
    actual = broker_script.real_answers(imitated)
    expected = broker_script.recorded(imitated)
    assert expected.keys() == actual.keys()
    assert broker_script.differences(expected, actual) == []
