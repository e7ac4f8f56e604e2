# SPDX-License-Identifier: Apache-2.0
"""The embedded broker against what real brokers answered to the same requests."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.releases import IMITATIONS, get_imitation
from consumerd.embedded.topic_config import apply_config
from tests.support import broker_script
from tests.support.served_logs import served_logs


@pytest.mark.parametrize("release", IMITATIONS)
async def test_requests_are_answered_as_a_broker_of_the_release_does(release: str, tmp_path: Path) -> None:
    """Clients branch on error codes, offsets, sizes and closed connections; each of them is compared."""
    stored = replace(LogSettings(), message_format=get_imitation(release).message_format)
    async with served_logs(tmp_path, as_release=release, partitions_of_new=0) as broker:
        for topic, configs in broker_script.TOPICS.items():
            broker.topics.add(topic, settings=apply_config(stored, configs))
        answers = await asyncio.to_thread(broker_script.run, broker.bootstrap, release)
    assert broker_script.differences(broker_script.recorded(release), answers) == []
