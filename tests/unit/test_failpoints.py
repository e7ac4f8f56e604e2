# SPDX-License-Identifier: Apache-2.0
"""Fail points do what they are told at the place they are told, once, and nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import consumerd
from consumerd import failpoints
from consumerd.errors import ConfigError
from consumerd.failpoints import POINTS, FailPoints

_CALL = re.compile(
    r"^(?P<indent> *)if failpoints\.ENABLED:\n(?P=indent)    failpoints\.reach\(\"(?P<point>\w+)\"\)\n", re.MULTILINE
)


class Recorder:
    """Actions that note that they happened."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.announced: list[str] = []

    def points(self, text: str) -> FailPoints:
        def note(name: str) -> Callable[[], None]:
            return lambda: self.done.append(name)

        return FailPoints(text, actions={name: note(name) for name in ("kill", "stop")}, announce=self.announced.append)


def test_action_happens_once_when_its_point_is_reached_for_the_nth_time() -> None:
    """A test says at which of many links a process dies."""
    recorder = Recorder()
    points = recorder.points("before_link=kill@3, after_commit=stop")
    seen = []
    for _ in range(5):
        points.reach("before_link")
        seen.append(list(recorder.done))
    points.reach("after_commit")
    points.reach("after_commit")

    assert seen == [[], [], ["kill"], ["kill"], ["kill"]]
    assert recorder.done == ["kill", "stop"]
    assert recorder.announced == ["before_link", "after_commit"]


def test_points_that_are_not_set_do_nothing() -> None:
    """Most points are not those of the test."""
    recorder = Recorder()
    points = recorder.points("before_link=kill")
    for point in POINTS:
        if point != "before_link":
            points.reach(point)

    assert recorder.done == []


def test_threads_that_reach_a_point_together_cause_one_action() -> None:
    """Files of many partitions are linked at the same time."""
    recorder = Recorder()
    points = recorder.points("before_link=kill@40")
    barrier = threading.Barrier(8)

    def run() -> None:
        barrier.wait()
        for _ in range(10):
            points.reach("before_link")

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert recorder.done == ["kill"]


@pytest.mark.parametrize(
    "text",
    ["before_lunch=kill", "before_link", "before_link=explode", "before_link=kill@0", "before_link=kill@x", "=kill"],
)
def test_what_names_no_point_and_action_is_refused(text: str) -> None:
    """A misspelt point would let a test pass that has tested nothing."""
    with pytest.raises(ConfigError, match="expected POINT=ACTION"):
        FailPoints(text)


def test_failing_point_raises_what_a_disk_would() -> None:
    """Steps of files are prepared for OSError, and for nothing else."""
    points = FailPoints("before_fsync=fail", announce=lambda point: None)
    with pytest.raises(OSError, match="fail point"):
        points.reach("before_fsync")
    points.reach("before_fsync")


@pytest.mark.parametrize(("action", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_process_comes_to_its_end_or_halt_at_the_very_point(action: str, number: int) -> None:
    """The step that follows must not happen, not even in the thread that reached the point; and the log says where."""
    program = (
        "import threading; from consumerd import failpoints\n"
        "def step():\n"
        "    for turn in range(3):\n"
        "        if failpoints.ENABLED: failpoints.reach('before_link')\n"
        "        print(turn, flush=True)\n"
        "thread = threading.Thread(target=step); thread.start(); thread.join()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, failpoints.VARIABLE: f"before_link={action}@2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        assert ended is not None
        assert (ended.si_code, ended.si_status) == (
            os.CLD_KILLED if action == "kill" else os.CLD_STOPPED,
            number,
        )
    finally:
        process.kill()
    output, errors = process.communicate()

    assert output.split() == ["0"]
    assert json.loads(errors) == {"event": "fail_point_reached", "point": "before_link"}


def test_process_without_the_variable_calls_nothing() -> None:
    """Production pays a look at a constant for each point, and no call: that of every site is behind ``ENABLED``."""
    environment = {key: value for key, value in os.environ.items() if key != failpoints.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", "from consumerd import failpoints; print(failpoints.ENABLED)"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False"]

    folder = Path(consumerd.__file__).parent
    sources = [path.read_text() for path in folder.rglob("*.py") if path.name != "failpoints.py"]
    calls = sum(source.count("failpoints.reach(") for source in sources)
    guarded = [match["point"] for source in sources for match in _CALL.finditer(source)]
    assert len(guarded) == calls
    assert set(guarded) == set(POINTS)
    # of ZooKeeper's claims one site for a node and one for many in a transaction, and one of a coordinator's
    assert all(count <= 3 for count in Counter(guarded).values())
