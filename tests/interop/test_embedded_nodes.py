# SPDX-License-Identifier: Apache-2.0
"""Two real brokers answer as recorded, so that what the embedded ones are compared with stays true."""

from __future__ import annotations

import pytest

from tests.interop.conftest import require
from tests.support import node_script


@pytest.mark.full
@pytest.mark.timeout(400)
def test_two_real_brokers_answer_as_recorded() -> None:
    """Leaders, epochs, in-sync replicas, NOT_LEADER, FindCoordinator, NOT_COORDINATOR, generations and positions."""
    require(node_script.RELEASE)
    with node_script.real_pair() as pair:
        assert node_script.recorded() == node_script.run(pair)
