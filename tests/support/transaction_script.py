# SPDX-License-Identifier: Apache-2.0
"""The requests of ``tests/vectors/record.py`` about transactions and topics, asked of any broker, and their answers.

Answers are compared with those that 1.1.1 was recorded to give. Producer ids are numbered in the order in which they
appear; ports, times, texts and record sets are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final

from consumerd.wire.framing import SIZE_BYTES
from consumerd.wire.schema import compile_codec
from consumerd.wire.session import CORRELATION_BYTES
from tests.support.frames import REQUESTS, VECTORS, read_frames
from tests.vectors.record import Recorder, record_topics_1_1, record_transactions_1_1

SCRIPTS: Final[dict[str, Callable[[Recorder], None]]] = {
    "transactions": record_transactions_1_1,
    "topics": record_topics_1_1,
}
_LEFT_OUT: Final = frozenset(
    {"host", "port", "node_id", "error_message", "record_set", "value", "source", "is_default", "throttle_time_ms"}
)

_TIMED: Final = frozenset({"commit again", "abort of a committed one"})
"""Steps whose answer depends on whether all markers are written by then."""
_UNKNOWN_ERROR: Final = -1
"""Code of 1.1.1 for a setting with a wrong value, which later releases call INVALID_CONFIG."""

Told = Sequence[tuple[str, str, Any]]
"""Request, note and answer of each step."""


def recorded(script: str) -> Told:
    """Return what 1.1.1 has answered."""
    frames = read_frames(VECTORS / f"recorded-kafka-1.1.1-{script}.json")
    return _simplify(
        (one.api.name, one.note, compile_codec(one.request_class.response, one.version).decode(one.response_body))
        for one in frames
    )


def ask(script: str, port: int) -> Told:
    """Return what a broker answers; it has the topic ``t`` with four records, and nothing else of the script."""
    recorder = Recorder(SimpleNamespace(ports=[port]))  # type: ignore[arg-type]  # only its port is used
    SCRIPTS[script](recorder)
    return _simplify((one["api"], one["note"], _decode(one)) for one in recorder.frames)


def _decode(frame: dict[str, Any]) -> Any:
    codec = compile_codec(REQUESTS[frame["api_key"]].response, frame["api_version"])
    body = memoryview(bytes.fromhex(frame["response_hex"]))[SIZE_BYTES + CORRELATION_BYTES :]
    return codec.decode(codec.skip_header_tags(body))


def _simplify(answers: Any) -> Told:
    ids: dict[int, str] = {}
    return [(api, note, _plain(answer, ids)) for api, note, answer in answers if note not in _TIMED]


def differences(expected: Told, actual: Told) -> list[str]:
    """Return the steps that were answered otherwise."""
    assert [step[:2] for step in expected] == [step[:2] for step in actual]
    pairs = zip(expected, actual, strict=True)
    return [f"{want}\n{got}" for want, got in pairs if _without_unknown(want, want) != _without_unknown(got, want)]


def _without_unknown(step: Any, recorded_step: Any) -> Any:
    """Leave the topics out for which 1.1.1 had no code."""
    if step[0] != "CREATE_TOPICS":
        return step
    unknown = {one["topic"] for one in recorded_step[2]["topics"] if one["error_code"] == _UNKNOWN_ERROR}
    return [one for one in step[2]["topics"] if one["topic"] not in unknown]


def _plain(value: Any, ids: dict[int, str]) -> Any:
    if isinstance(value, tuple):
        plain = [_plain(one, ids) for one in value]
        # brokers list topics in any order
        return sorted(plain, key=str)
    if not dataclasses.is_dataclass(value):
        return value
    shown = {}
    for one in dataclasses.fields(value):
        content = getattr(value, one.name)
        if one.name == "producer_id" and content >= 0:
            content = ids.setdefault(content, f"producer {len(ids)}")
        if one.name not in _LEFT_OUT:
            shown[one.name] = _plain(content, ids)
    return shown
