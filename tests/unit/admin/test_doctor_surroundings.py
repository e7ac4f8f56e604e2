# SPDX-License-Identifier: Apache-2.0
"""What the doctor tries out on this machine: landing folders, and what answers at the listen address."""

from __future__ import annotations

import errno
import http.server
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from consumerd.admin.doctor.reading import find_landed_folders
from consumerd.admin.doctor.surroundings import FolderFacts, ask_daemon, ask_metrics, try_folder
from consumerd.admin.doctor.surroundings_checks import check_daemon, check_folder, check_metrics
from consumerd.landing.findings import Finding
from tests.support.disk_faults import find_why_no_mount
from tests.support.faulty_files import RecordingFileSystem


def refusing(call: str, number: int) -> RecordingFileSystem:
    """Return a file system that refuses one of its calls, as mounts do that lack an ability."""

    def before(operation: str, _name: str) -> None:
        if operation == call:
            raise OSError(number, os.strerror(number))

    return RecordingFileSystem(before)


def tell(folder: FolderFacts) -> list[Finding]:
    return list(check_folder(folder, "lander"))


def refuse_lock(_descriptor: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_folder_that_can_do_everything_is_not_told_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    """The file of the trial and its second name are gone."""
    folder = try_folder("sinks.lake.path", tmp_path)
    assert folder.failures == {}
    assert {"bytes", "inodes"} == folder.space.keys()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "number", "ability", "consequence"),
    [
        ("create", errno.EROFS, "make a file", "nothing can be landed"),
        ("write", errno.ENOSPC, "write", "nothing can be landed"),
        ("sync", errno.EIO, "fsync", "nothing that is landed is durable"),
        ("link", errno.EPERM, "link", "two writers never overlap"),
    ],
)
def test_ability_that_a_file_system_lacks_is_an_error_with_its_consequence(
    tmp_path: Path, call: str, number: int, ability: str, consequence: str
) -> None:
    """Told before the first record waits for it; what was made is removed all the same."""
    (told,) = tell(try_folder("sinks.lake.path", tmp_path, files=refusing(call, number)))
    assert (told.severity, told.kind) == ("error", "folder-not-usable")
    assert told.where == f"sinks.lake.path: {tmp_path}"
    assert ability in told.detail
    assert consequence in told.detail
    assert "as user lander" in told.detail
    assert list(tmp_path.iterdir()) == []


def test_file_system_without_flock_is_told_and_does_not_matter_for_landing(tmp_path: Path) -> None:
    """Tables need it, and a landing zone does not."""
    (told,) = tell(try_folder("sinks.lake.path", tmp_path, lock=refuse_lock))
    assert (told.severity, told.kind) == ("notice", "folder-without-flock")


def test_path_that_is_still_to_be_made_is_tried_at_its_nearest_parent(tmp_path: Path) -> None:
    """The daemon makes it; the doctor does not."""
    path = tmp_path / "a" / "b"
    (told,) = tell(try_folder("sinks.lake.path", path, files=refusing("create", errno.EACCES)))
    assert f"its parent {tmp_path} was tried" in told.detail
    assert list(tmp_path.iterdir()) == []


def test_folders_of_partitions_that_refuse_are_one_finding(tmp_path: Path) -> None:
    """The sink's path may be fine, and a folder below it another user's. Older chains are not written any more."""
    newest, other = tmp_path / "topic=a/partition=0/chain=10", tmp_path / "topic=a/partition=1/chain=1"
    for folder in (newest / "_meta", newest.parent / "chain=9", other):
        folder.mkdir(parents=True)
    within = list(find_landed_folders(tmp_path))
    assert within == [newest.parents[1], newest.parent, newest, newest / "_meta", other.parent, other]
    refused = (newest / "_meta", other)
    (told,) = tell(
        try_folder("sinks.lake.path", tmp_path, within=within, may=lambda folder, _mode: folder not in refused)
    )
    assert (told.severity, told.kind) == ("error", "partition-folder-not-usable")
    assert f"user lander may not list and write {refused[0]}, {refused[1]}" in told.detail
    assert tell(try_folder("sinks.lake.path", tmp_path, within=within)) == []


def test_folder_of_a_partition_that_is_mounted_read_only_is_told(tmp_path: Path) -> None:
    """A real one, which refuses root, too."""
    if (why := find_why_no_mount()) is not None:
        pytest.skip(f"cannot mount: {why}; run as root, in a container with --cap-add SYS_ADMIN")
    chain = tmp_path / "topic=a/partition=0/chain=1"
    chain.mkdir(parents=True)
    subprocess.run(("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(chain)), check=True)
    try:
        (told,) = tell(try_folder("sinks.lake.path", tmp_path, within=list(find_landed_folders(tmp_path))))
    finally:
        subprocess.run(("umount", str(chain)), check=True)
    assert told.kind == "partition-folder-not-usable"
    assert str(chain) in told.detail


@pytest.mark.parametrize(
    ("free_bytes", "free_inodes", "told"),
    [
        (50, 50, []),
        (4, 50, [("disk-short-of-bytes", "warning")]),
        (50, 4, [("disk-short-of-inodes", "warning")]),
        (50, 0, [("disk-short-of-inodes", "error")]),
        (0, 0, [("disk-short-of-bytes", "error"), ("disk-short-of-inodes", "error")]),
    ],
)
def test_space_and_inodes_that_run_out_are_told_by_themselves(
    tmp_path: Path, free_bytes: int, free_inodes: int, told: list[tuple[str, str]]
) -> None:
    """A file system without an inode refuses files while its bytes are free."""

    def stat(_path: Path) -> os.statvfs_result:
        return os.statvfs_result((512, 1, 100, free_bytes, free_bytes, 100, free_inodes, free_inodes, 0, 255))

    found = tell(try_folder("sinks.lake.path", tmp_path, stat=stat))
    assert [(one.kind, one.severity) for one in found] == told


def test_file_system_that_counts_no_inodes_does_not_lack_any(tmp_path: Path) -> None:
    """Btrfs makes them as it needs them, and says 0 of 0."""

    def stat(_path: Path) -> os.statvfs_result:
        return os.statvfs_result((512, 1, 100, 50, 50, 0, 0, 0, 0, 255))

    assert tell(try_folder("sinks.lake.path", tmp_path, stat=stat)) == []


def test_mount_without_a_free_inode_is_told(tmp_path: Path) -> None:
    """A real one: a tmpfs of four inodes, of which files take all."""
    if (why := find_why_no_mount()) is not None:
        pytest.skip(f"cannot mount: {why}; run as root, in a container with --cap-add SYS_ADMIN")
    subprocess.run(("mount", "-t", "tmpfs", "-o", "nr_inodes=4", "tmpfs", str(tmp_path)), check=True)
    try:
        for name in "abc":
            (tmp_path / name).touch()
        found = tell(try_folder("sinks.lake.path", tmp_path))
    finally:
        subprocess.run(("umount", str(tmp_path)), check=True)
    assert [one.kind for one in found] == ["folder-not-usable", "disk-short-of-inodes"]
    assert found[0].advice == "make room on the volume: partitions go on by themselves"
    assert "0 of 4 inodes are free" in found[1].detail


@contextmanager
def serving(body: bytes, code: int = 200) -> Iterator[int]:
    """Serve one answer to every request on a free port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_metrics_that_answer_are_told_from_another_process_and_from_none() -> None:
    """What the doctor cannot see is said each time: whether anybody scrapes, and whether alerts reach anybody."""
    with serving(b'consumerd_info{version="1"} 1\n') as port:
        (loopback,) = check_metrics(ask_metrics(("127.0.0.1", port), timeout_s=5))
        assert list(check_metrics(ask_metrics(("0.0.0.0", port), timeout_s=5))) == []
    assert (loopback.kind, loopback.severity) == ("metrics-on-loopback", "notice")
    for code, body in ((200, b"hello"), (404, b"")):
        with serving(body, code) as port:
            (other,) = check_metrics(ask_metrics(("127.0.0.1", port), timeout_s=5))
        assert (other.kind, other.severity) == ("metrics-of-another", "warning")
    (silent,) = check_metrics(ask_metrics(("127.0.0.1", port), timeout_s=5))
    assert (silent.kind, silent.severity) == ("metrics-silent", "notice")
    for one in (loopback, other, silent):
        assert "cannot be seen from here" in one.detail


def status_of(group: str, *partitions: tuple[str, str, str, str | None]) -> bytes:
    """Return a status as docs/status-api.md has it, of partitions given by topic, state, since and reason."""
    return json.dumps(
        {
            "group": group,
            "partitions": [
                {"topic": topic, "partition": "0", "state": state, "since": {"at": since}, "reason": reason}
                for topic, state, since, reason in partitions
            ],
        }
    ).encode()


def ask(body: bytes, code: int = 200) -> list[Finding]:
    with serving(body, code) as port:
        return list(check_daemon(ask_daemon(("127.0.0.1", port), timeout_s=5), "g"))


def test_partitions_with_one_reason_are_one_finding_since_the_first_of_them() -> None:
    """A volume that is full has every partition failing."""
    full, bad = "/data: cannot write", "malformed offset"
    found = ask(
        status_of(
            "g",
            ("a", "failing", "2026-01-02T00:00:07Z", full),
            ("b", "failing", "2026-01-02T00:00:05Z", full),
            ("c", "stopped", "2026-01-01T00:00:00Z", bad),
            ("d", "running", "2026-01-01T00:00:00Z", None),
            ("e", "paused", "2026-01-01T00:00:00Z", None),
        )
    )
    assert [(one.kind, one.where, one.detail) for one in found] == [
        ("partition-failing", "a/0, b/0", f"failing since 2026-01-02T00:00:05Z: {full}"),
        ("partition-stopped", "c/0", f"stopped since 2026-01-01T00:00:00Z: {bad}"),
    ]


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (404, b"", "answers 404"),
        (200, b"<html>", "does not answer with a status"),
        (200, b"[]", "does not answer with a status"),
        (200, b'{"group": "g", "partitions": [{"state": "stopped"}]}', "does not answer with a status"),
        (200, b"[" * 100_000, "does not answer with a status"),
    ],
)
def test_a_status_that_cannot_be_read_is_told(code: int, body: bytes, said: str) -> None:
    """Silence would read as: none is stopped."""
    (told,) = ask(body, code)
    assert (told.kind, told.severity) == ("status-unreadable", "warning")
    assert said in told.detail
    assert "stopped or failing is not known" in told.detail


def test_a_daemon_of_another_group_is_told_from_ours() -> None:
    """Its partitions are nothing of ours, and ours cannot listen there."""
    (told,) = ask(status_of("h", ("a", "stopped", "2026-01-02T00:00:07Z", "x")))
    assert told.kind == "metrics-of-another"
    assert "group 'h'" in told.detail
