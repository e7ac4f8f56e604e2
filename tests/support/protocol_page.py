# SPDX-License-Identifier: Apache-2.0
"""Requests, versions and error codes of Kafka's protocol, for the tables of ``docs/protocol.md``.

``make protocol`` writes the tables anew from the code. Declarations are those of ``consumerd.wire``, versions those of
``net.versions``. A module uses a request or a code if its syntax tree names it. Two things stand here alone: the names
of the protocol guide, and :data:`SPOKEN`, the tests that send a request to a real broker.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from consumerd.embedded.releases import SERVED
from consumerd.errors import UnsupportedVersion
from consumerd.net.versions import RELEASES, VersionRange, assume_release
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.framing import SIZE_BYTES
from consumerd.wire.schema import Request, compile_codec
from consumerd.wire.session import CORRELATION_BYTES
from tests.interop.conftest import MATRIX
from tests.support.broker_script import RECORDED as ANSWERS
from tests.support.documents import DOCS, TOP
from tests.support.frames import REQUESTS, VECTORS, read_frames
from tests.support.kafka import parse_release
from tests.support.syntax import parse_file

PAGE: Final = DOCS / "protocol.md"
BEGIN: Final = "<!-- {table}: written by `make protocol` -->"
END: Final = "<!-- end of {table} -->"

PACKAGE: Final = TOP / "consumerd"
TESTS: Final = TOP / "tests"
INTEROP: Final = TESTS / "interop"

GUIDE_REQUESTS: Final[Mapping[ApiKey, str]] = {
    ApiKey.PRODUCE: "ProduceRequest",
    ApiKey.FETCH: "FetchRequest",
    ApiKey.LIST_OFFSETS: "OffsetRequest",
    ApiKey.METADATA: "MetadataRequest",
    ApiKey.OFFSET_COMMIT: "OffsetCommitRequest",
    ApiKey.OFFSET_FETCH: "OffsetFetchRequest",
    ApiKey.FIND_COORDINATOR: "GroupCoordinatorRequest",
    ApiKey.JOIN_GROUP: "JoinGroupRequest",
    ApiKey.HEARTBEAT: "HeartbeatRequest",
    ApiKey.LEAVE_GROUP: "LeaveGroupRequest",
    ApiKey.SYNC_GROUP: "SyncGroupRequest",
    ApiKey.DESCRIBE_GROUPS: "DescribeGroupsRequest",
    ApiKey.LIST_GROUPS: "ListGroupsRequest",
}
"""Names in the protocol guide of 0.8 and 0.9."""

GUIDE_CODES: Final[Mapping[int, str]] = {
    -1: "Unknown",
    0: "NoError",
    1: "OffsetOutOfRange",
    2: "InvalidMessage, CorruptMessage",
    3: "UnknownTopicOrPartition",
    4: "InvalidMessageSize",
    5: "LeaderNotAvailable",
    6: "NotLeaderForPartition",
    7: "RequestTimedOut",
    8: "BrokerNotAvailable",
    9: "ReplicaNotAvailable",
    10: "MessageSizeTooLarge",
    11: "StaleControllerEpoch",
    12: "OffsetMetadataTooLarge",
    14: "GroupLoadInProgress",
    15: "GroupCoordinatorNotAvailable",
    16: "NotCoordinatorForGroup",
    17: "InvalidTopic",
    18: "RecordListTooLarge",
    19: "NotEnoughReplicas",
    20: "NotEnoughReplicasAfterAppend",
    21: "InvalidRequiredAcks",
    22: "IllegalGeneration",
    23: "InconsistentGroupProtocol",
    24: "InvalidGroupId",
    25: "UnknownMemberId",
    26: "InvalidSessionTimeout",
    27: "RebalanceInProgress",
    28: "InvalidCommitOffsetSize",
    29: "TopicAuthorizationFailed",
    30: "GroupAuthorizationFailed",
    31: "ClusterAuthorizationFailed",
}
"""Names in the same guide, without the ending ``Code`` that some of them have."""

GUIDE_RETRIABLE: Final = frozenset({2, 3, 5, 6, 7, 14, 15, 16, 19, 20})
"""Codes that the guide calls retriable."""

_RECORDED_ANSWERS: Final = "test_broker_answers::test_real_brokers_answer_as_recorded"
_GROUP_OF_TWO: Final = "test_embedded_coordinator::test_a_group_of_two_hears_the_same_from_both_brokers"
_SASL: Final = "test_sasl::test_each_mechanism_is_accepted"
_TRANSACTION_SCRIPT: Final = "test_transactions::test_requests_are_answered_as_recorded"
_COMMITTED: Final = "test_transactions::test_committed_records_are_read_once_and_aborted_ones_never"
_KILLED: Final = "test_transactions::test_each_number_is_there_once_though_its_writer_was_killed_at_every_step"
_AUTHORIZER: Final = "test_error_codes::test_codes_of_an_authorizer"

SPOKEN: Final[Mapping[ApiKey, Sequence[str]]] = {
    ApiKey.PRODUCE: (_RECORDED_ANSWERS, "test_error_codes::test_codes_of_replicas_that_do_not_follow"),
    ApiKey.FETCH: (_RECORDED_ANSWERS, _AUTHORIZER),
    ApiKey.LIST_OFFSETS: (_RECORDED_ANSWERS, "test_net_cluster::test_offsets_and_times_of_a_real_log"),
    ApiKey.METADATA: (_RECORDED_ANSWERS, "test_net_cluster::test_both_accounts_of_a_real_cluster_agree"),
    ApiKey.OFFSET_COMMIT: (_GROUP_OF_TWO,),
    ApiKey.OFFSET_FETCH: (_GROUP_OF_TWO, _AUTHORIZER),
    ApiKey.FIND_COORDINATOR: (_GROUP_OF_TWO, _AUTHORIZER),
    ApiKey.JOIN_GROUP: (_GROUP_OF_TWO,),
    ApiKey.HEARTBEAT: (_GROUP_OF_TWO,),
    ApiKey.LEAVE_GROUP: (_GROUP_OF_TWO,),
    ApiKey.SYNC_GROUP: (_GROUP_OF_TWO,),
    ApiKey.DESCRIBE_GROUPS: (_GROUP_OF_TWO, _AUTHORIZER),
    ApiKey.LIST_GROUPS: (_GROUP_OF_TWO, _AUTHORIZER),
    ApiKey.API_VERSIONS: (_RECORDED_ANSWERS, "test_net_cluster::test_release_is_found_out"),
    ApiKey.SASL_HANDSHAKE: (_SASL,),
    ApiKey.SASL_AUTHENTICATE: (_SASL,),
    ApiKey.CREATE_TOPICS: (_TRANSACTION_SCRIPT,),
    ApiKey.INIT_PRODUCER_ID: (
        _TRANSACTION_SCRIPT,
        "test_transactions::test_a_fresh_coordinator_answers_errors_that_pass",
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (_TRANSACTION_SCRIPT, _COMMITTED),
    ApiKey.ADD_OFFSETS_TO_TXN: (_TRANSACTION_SCRIPT, _KILLED),
    ApiKey.END_TXN: (_TRANSACTION_SCRIPT, _COMMITTED),
    ApiKey.TXN_OFFSET_COMMIT: (_TRANSACTION_SCRIPT, _KILLED),
    ApiKey.DESCRIBE_CONFIGS: (_TRANSACTION_SCRIPT,),
    ApiKey.CREATE_PARTITIONS: (_TRANSACTION_SCRIPT,),
}
"""Tests that send a request to a real broker: ``FILE::TEST`` below ``tests/interop``.

Not all of them: one that asks the broker itself, and one that goes through the product, where there is such a one. The
file, or a module that it imports, has to construct the request.
"""

_ANSWERED_AS_RECORDED: Final = "component/embedded/test_broker_answers"
_REPLAYED: Final = "unit/embedded/coordinator/test_recorded_answers"
_CODES: Final = ErrorCode.__name__
_WIRE: Final = PACKAGE / "wire"
_EMBEDDED: Final = PACKAGE / "embedded"


# -- what the source names


def list_sources(folder: Path, *but: Path, word: str = "") -> list[Path]:
    """Return the Python files below a folder, but not below others, that contain a word."""
    return sorted(
        path
        for path in folder.rglob("*.py")
        if not any(other in path.parents for other in but) and word in _read_text(path)
    )


@cache
def _read_text(path: Path) -> str:
    return path.read_text()


def name_request(key: ApiKey) -> str:
    """Return the name of a request's class, or of the key if none is declared."""
    return REQUESTS[key].__name__ if key in REQUESTS else key.name


def finds_name(tree: ast.AST, name: str) -> bool:
    """Tell if a module imports a name, or uses it as an attribute."""
    return any(
        (isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names))
        or (isinstance(node, ast.Attribute) and node.attr == name)
        for node in ast.walk(tree)
    )


def find_codes(*trees: ast.AST) -> frozenset[ErrorCode]:
    """Return the codes that source names, as ``ErrorCode.NAME``."""
    return frozenset(
        ErrorCode[node.attr]
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == _CODES
        and node.attr in ErrorCode.__members__
    )


def find_users(request: type[Request[Any]]) -> list[str]:
    """Return the modules that send a request; ``wire`` and the embedded broker do not count."""
    # a tree takes a hundred times as long as a search: it is made of files that have the word
    files = list_sources(PACKAGE, _WIRE, _EMBEDDED, word=request.__name__)
    return [_shorten(path, PACKAGE) for path in files if finds_name(parse_file(path), request.__name__)]


def _shorten(path: Path, folder: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix()


def _by_code(files: Iterable[Path], folder: Path) -> dict[ErrorCode, list[str]]:
    found = defaultdict[ErrorCode, list[str]](list)
    for path in files:
        for code in find_codes(parse_file(path)):
            found[code].append(_shorten(path, folder))
    return found


@cache
def code_users() -> Mapping[ErrorCode, Sequence[str]]:
    """Return the modules of the product that treat a code differently from others."""
    return _by_code(list_sources(PACKAGE, _WIRE, _EMBEDDED, word=_CODES), PACKAGE)


@cache
def code_givers() -> Mapping[ErrorCode, Sequence[str]]:
    """Return the modules of the embedded broker that answer with a code."""
    return _by_code(list_sources(_EMBEDDED, word=_CODES), PACKAGE)


# -- what tests provoke


@cache
def codes_on_real_brokers() -> Mapping[ErrorCode, Sequence[str]]:
    """Return the tests of ``tests/interop`` that provoke a code.

    They name it, or compare with recorded answers that have it.
    """
    found = defaultdict[ErrorCode, list[str]](list)
    for path in list_sources(INTEROP, word=_CODES):
        module = parse_file(path)
        for test in find_tests(module):
            for code in find_codes(*_with_helpers(test, module)):
                found[code].append(f"{path.stem}::{test.name}")
    for code in codes_of_answers(MATRIX):
        found[code].append(_RECORDED_ANSWERS)
    return found


def find_tests(module: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the test functions of a module."""
    return [
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


def _with_helpers(test: ast.AST, module: ast.Module) -> Collection[ast.AST]:
    """Return a test, and the functions of its module that it calls, at any depth."""
    helpers = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    reached, ahead = dict[str, ast.AST](), [test]
    while ahead:
        for node in ast.walk(ahead.pop()):
            if isinstance(node, ast.Name) and node.id in helpers and node.id not in reached:
                reached[node.id] = helpers[node.id]
                ahead.append(helpers[node.id])
    return [test, *reached.values()]


@cache
def codes_on_the_embedded_broker() -> Mapping[ErrorCode, Sequence[str]]:
    """Return the tests that have a code from the embedded broker.

    They name it, inject it as a fault, or compare with recordings that have it.
    """
    found = defaultdict[ErrorCode, list[str]](list)
    folders = ("unit/embedded", "component/embedded")
    own = [path for folder in folders for path in list_sources(TESTS / folder, word=_CODES)]
    for code, tests in _by_code([*own, INTEROP / "test_embedded_coordinator.py"], TESTS).items():
        found[code] += tests
    for path in list_sources(TESTS, INTEROP, *(TESTS / folder for folder in folders), word=_CODES):
        for code in find_codes(*_injections(parse_file(path))):
            found[code].append(_shorten(path, TESTS))
    for code in codes_of_answers():
        found[code].append(_ANSWERED_AS_RECORDED)
    for code in codes_of_frames("recorded-kafka-*-groups.json"):
        found[code].append(_REPLAYED)
    return found


def _injections(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the calls of ``faults.error(...)``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "error":
            yield node


# -- what real brokers were recorded to answer


@cache
def codes_of_answers(releases: Collection[str] | None = None) -> Mapping[ErrorCode, set[str]]:
    """Return the releases whose recorded answers have a code, of all releases or of some."""
    found = defaultdict[ErrorCode, set[str]](set)
    for path in sorted(ANSWERS.glob("kafka-*.json")):
        release = path.stem.removeprefix("kafka-")
        if releases is None or release in releases:
            for code in _codes_in(json.loads(path.read_text())):
                found[code].add(release)
    return found


@cache
def codes_of_frames(pattern: str = "*kafka-*.json") -> Mapping[ErrorCode, set[str]]:
    """Return the releases whose recorded frames have a code."""
    found = defaultdict[ErrorCode, set[str]](set)
    for path in sorted(VECTORS.glob(pattern)):
        for frame in read_frames(path):
            if frame.response is not None:
                codec = compile_codec(frame.request_class.response, frame.response_version)
                for code in _codes_in(codec.decode(frame.response[SIZE_BYTES + CORRELATION_BYTES :])):
                    found[code].add(frame.release)
    return found


def _codes_in(value: Any) -> Iterator[ErrorCode]:
    """Yield the error codes of an answer, decoded or as JSON, at any depth."""
    if dataclasses.is_dataclass(value):
        value = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, dict):
        if "error_code" in value:
            yield ErrorCode(value["error_code"])
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _codes_in(one)


# -- tables


def make_requests() -> str:
    """Return the table of requests, one for each API key."""
    head = (
        "key",
        "request",
        "in the guide",
        "versions declared",
        "declared in",
        "sent by",
        "embedded broker",
        "to a real broker",
    )
    return _make_table(head, map(_request_row, ApiKey))


def _request_row(key: ApiKey) -> Sequence[str]:
    name, guide = _code(name_request(key)), GUIDE_REQUESTS.get(key, "–")  # noqa: RUF001
    if key not in REQUESTS:
        return (str(key.value), name, guide, "not declared", "", "", "", "")
    request = REQUESTS[key]
    return (
        str(key.value),
        name,
        guide,
        str(VersionRange(request.versions.start, request.versions.stop - 1)),
        _code(request.__module__.removeprefix("consumerd.").replace(".", "/")),
        _list_codes(find_users(request)) or "nothing: declared only",
        f"serves {SERVED[key]}" if key in SERVED else "does not serve it",
        _list_codes(SPOKEN.get(key, ())) or "none yet",
    )


def make_versions() -> str:
    """Return the table of versions, a row for each release of :data:`RELEASES`."""
    # the question for versions is sent in version 0, whatever the release
    requests = [request for key, request in sorted(REQUESTS.items()) if key is not ApiKey.API_VERSIONS]
    sent = [request for request in requests if find_users(request)]
    others = [request for request in requests if request not in sent]
    head = ("release", *map(_title, sent), *(f"{_title(request)} (not sent)" for request in others))
    last = max(RELEASES)
    rows = []
    for release in RELEASES:
        versions = assume_release(release)
        row = [".".join(map(str, release)) + (" and later" if release == last else "")]
        for request in (*sent, *others):
            try:
                row.append(f"v{versions.choose(request)}")
            except UnsupportedVersion:
                row.append("–")  # noqa: RUF001
        rows.append(row)
    return _make_table(head, rows)


def _title(request: type[Request[Any]]) -> str:
    return request.__name__.removesuffix("Request")


def make_codes() -> str:
    """Return the table of the guide's error codes."""
    head = (
        "code",
        "name",
        "in the guide",
        "retriable",
        "treated specially by",
        "given by",
        "on a real broker",
        "on the embedded broker",
    )
    rows = ([str(code), _code(ErrorCode(code).name), guide, *_cells(code)] for code, guide in GUIDE_CODES.items())
    return _make_table(head, rows)


def make_later_codes() -> str:
    """Return the table of later codes that anything but the table of codes knows."""
    head = (
        "code",
        "name",
        "retriable",
        "treated specially by",
        "given by",
        "on a real broker",
        "on the embedded broker",
    )
    seen = {*code_users(), *code_givers(), *codes_on_real_brokers(), *codes_of_frames()}
    later = sorted(code for code in seen if code not in GUIDE_CODES)
    return _make_table(head, ([str(code.value), _code(code.name), *_cells(code)] for code in later))


def _cells(number: int) -> Sequence[str]:
    code = ErrorCode(number)
    if code is ErrorCode.NONE:
        return ("", "", "", "", "")
    return (
        _say_retriable(code),
        _list_codes(code_users().get(code, ())),
        _list_codes(code_givers().get(code, ())),
        _list_codes(codes_on_real_brokers().get(code, ())) or _say_recorded(code),
        _list_codes(codes_on_the_embedded_broker().get(code, ())) or "none yet",
    )


def _say_retriable(code: ErrorCode) -> str:
    answer = ("yes, with new metadata" if code.refresh else "yes") if code.retriable else "no"
    if code.value in GUIDE_CODES and code.retriable is not (code.value in GUIDE_RETRIABLE):
        return f"{answer} (the guide: {'no' if code.retriable else 'yes'})"
    return answer


def _say_recorded(code: ErrorCode) -> str:
    releases = codes_of_frames().get(code, set()) | codes_of_answers().get(code, set())
    return f"none yet; recorded from {', '.join(sorted(releases, key=parse_release))}" if releases else "none yet"


def _code(text: str) -> str:
    return f"`{text}`"


def _list_codes(names: Iterable[str]) -> str:
    return ", ".join(map(_code, dict.fromkeys(names)))


def _make_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


TABLES: Final = {
    "requests": make_requests,
    "versions": make_versions,
    "error codes": make_codes,
    "later error codes": make_later_codes,
}


def write_tables(page: str) -> str:
    """Return the page with all tables written anew.

    Raises ValueError where the marks of one are missing.
    """
    for table, make in TABLES.items():
        begin, end = BEGIN.format(table=table), END.format(table=table)
        before, marked, rest = page.partition(f"{begin}\n")
        _, ended, behind = rest.partition(end)
        if not (marked and ended):
            raise ValueError(f"{PAGE.name}: expected {begin} and {end}")
        page = f"{before}{marked}{make()}{ended}{behind}"
    return page


if __name__ == "__main__":
    PAGE.write_text(write_tables(PAGE.read_text()))
