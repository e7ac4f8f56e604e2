# SPDX-License-Identifier: Apache-2.0
"""Files of a log that live in memory: they fail on request, and lose what was not synced when the power is cut."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

from consumerd.embedded.log.files import OsLogFiles
from tests.support.faulty_files import PowerCut

Before = Callable[[str, str], None]
"""Called with operation and name before each change, and each read; may raise OSError, or PowerCut."""


class FailOnce:
    """A ``before`` that lets the next ``operation`` on a name with this ending fail, and ``more`` after it."""

    def __init__(self, operation: str, ending: str = "", code: int = errno.EIO, *, more: int = 0) -> None:
        self.failed = 0
        self._left = more + 1
        self._what = (operation, ending, code)

    def __call__(self, operation: str, name: str) -> None:
        """Fail if this is it."""
        wanted, ending, code = self._what
        if self._left and operation == wanted and name.endswith(ending):
            self._left -= 1
            self.failed += 1
            raise OSError(code, os.strerror(code), name)


class RecordingLogFiles(OsLogFiles):
    """The real ones, which say what they are about to change."""

    def __init__(self, before: Before = lambda operation, name: None) -> None:
        self.before = before
        self._names: dict[int, str] = {}

    def open(self, path: Path, *, create: bool = False) -> int:
        """See OsLogFiles."""
        if create and not path.exists():
            self.before("create", path.name)
        descriptor = super().open(path, create=create)
        self._names[descriptor] = path.name
        return descriptor

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> None:
        """See OsLogFiles."""
        self.before("write", self._names[descriptor])
        super().write(descriptor, position, data)

    def truncate(self, descriptor: int, size: int) -> None:
        """See OsLogFiles."""
        self.before("truncate", self._names[descriptor])
        super().truncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """See OsLogFiles."""
        self.before("sync", self._names[descriptor])
        super().sync(descriptor)

    def sync_folder(self, path: Path) -> None:
        """See OsLogFiles."""
        self.before("sync_folder", path.name)
        super().sync_folder(path)

    def rename(self, source: Path, target: Path) -> None:
        """See OsLogFiles."""
        self.before("rename", source.name)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        """See OsLogFiles."""
        self.before("unlink", path.name)
        super().unlink(path)


class _File:
    """``dirty`` are the blocks that the next sync will write: those written to since the last one, be it that it failed."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = b""
        self.dirty: set[int] = set()
        self.modified_ms = 0


class _Folder:
    """Its names, and the changes of them since it was synced: each a name and what it stood for then."""

    def __init__(self) -> None:
        self.names: dict[str, _File | _Folder] = {}
        self.durable: dict[str, _File | _Folder] = {}
        self.changes: list[dict[str, _File | _Folder | None]] = []

    def change(self, **names: _File | _Folder | None) -> None:
        """Change names in one step, as ``rename`` does."""
        self.changes.append(names)
        _apply(self.names, names)


def _apply(names: dict[str, _File | _Folder], change: dict[str, _File | _Folder | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class MemoryLogFiles(OsLogFiles):
    """See LogFiles. Names in a folder change in order, as in a journal; content reaches the disk in any order.

    ``before`` is asked before each change, and each read. ``changes_left`` counts down with each change; at 0 the power
    goes in the middle of it. :meth:`restore` gives it back: what was synced is there. Of what was not, each block may have been
    written, or not (then it has what was there before, or zeros), or may be there without its content (then it has
    anything); the file may have any size between the old one and the new one. What a failed sync was to write is not
    written by the next one.
    """

    def __init__(self, random_source: random.Random, *, block_bytes: int = 32) -> None:
        self.before: Before = lambda operation, name: None
        self.changes = 0
        self.changes_left: int | None = None
        self.now_ms: Callable[[], int] = lambda: 0
        self._random = random_source
        self._block_bytes = block_bytes
        self._root = _Folder()
        self._open: dict[int, tuple[_File, str]] = {}
        self._next = 2
        self._off = False

    # -- faults

    def cut_power(self) -> None:
        """Switch the power off."""
        self._off = True

    def restore(self) -> None:
        """Switch the power on again; what was not synced may be lost."""
        self._off = False
        self.changes_left = None
        self._open = {}
        self._lose(self._root)

    def kill(self) -> None:
        """Lose the open descriptors only, as when a process is killed."""
        self._off = False
        self.changes_left = None
        self._open = {}

    def content(self, path: Path) -> bytearray:
        """Return a file's content, to be read or spoilt."""
        found = self._find(path)
        assert isinstance(found, _File)
        return found.content

    def open_count(self) -> int:
        """Return how many descriptors are open."""
        return len(self._open)

    def _lose(self, folder: _Folder) -> None:
        names = dict(folder.durable)
        for change in folder.changes[: self._random.randint(0, len(folder.changes))]:
            _apply(names, change)
        folder.names, folder.durable, folder.changes = names, dict(names), []
        for node in names.values():
            if isinstance(node, _Folder):
                self._lose(node)
            else:
                node.content = self._left_of(node)
                node.durable = bytes(node.content)
                node.dirty = set()

    def _left_of(self, file: _File) -> bytearray:
        old, new = file.durable, file.content
        if old == new:
            return new
        size = self._random.choice((len(old), len(new), self._random.randint(*sorted((len(old), len(new))))))
        left = bytearray()
        for at in range(0, size, self._block_bytes):
            end = min(at + self._block_bytes, size)
            before, after = (bytes(data[at:end]).ljust(end - at, b"\0") for data in (old, new))
            if before == after:
                left += after
                continue
            kept = max(0, min(len(old), end) - at)
            nonsense = before[:kept] + self._random.randbytes(end - at - kept)
            left += self._random.choice((before, after, after, nonsense))
        return left

    # -- the port

    def open(self, path: Path, *, create: bool = False) -> int:
        """See OsLogFiles."""
        self._check()
        folder = self._find(path.parent)
        assert isinstance(folder, _Folder)
        file = folder.names.get(path.name)
        if file is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "not there", str(path))
            self._change("create", path.name)
            file = _File()
            file.modified_ms = self.now_ms()
            folder.change(**{path.name: file})
        assert isinstance(file, _File)
        self._next += 1
        self._open[self._next] = (file, path.name)
        return self._next

    def close(self, descriptor: int) -> None:
        """See OsLogFiles."""
        del self._open[descriptor]

    def size(self, descriptor: int) -> int:
        """See OsLogFiles."""
        return len(self._file(descriptor).content)

    def read(self, descriptor: int, position: int, size: int) -> bytes:
        """See OsLogFiles."""
        content = self._file(descriptor).content
        self.before("read", self._open[descriptor][1])
        return bytes(content[position : position + size])

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> None:
        """See OsLogFiles."""
        file, name = self._open[descriptor]
        whole = bytes(data)
        part = whole[: self._random.randint(0, len(whole))]
        try:
            self._change("write", name)
        except (OSError, PowerCut):
            self._put(file, position, part)
            raise
        self._put(file, position, whole)

    def _put(self, file: _File, position: int, data: bytes) -> None:
        if len(file.content) < position:
            file.content += bytes(position - len(file.content))
        file.content[position : position + len(data)] = data
        if data:
            file.dirty.update(range(position // self._block_bytes, (position + len(data) - 1) // self._block_bytes + 1))
        file.modified_ms = self.now_ms()

    def truncate(self, descriptor: int, size: int) -> None:
        """See OsLogFiles."""
        file, name = self._open[descriptor]
        self._change("truncate", name)
        del file.content[size:]
        file.content += bytes(size - len(file.content))

    def sync(self, descriptor: int) -> None:
        """See OsLogFiles."""
        file, name = self._open[descriptor]
        try:
            self._change("sync", name)
        except OSError:
            file.dirty = set()  # as Linux does: the pages count as clean although they never reached the disk
            raise
        durable = bytearray(file.durable[: len(file.content)].ljust(len(file.content), b"\0"))
        for block in file.dirty:
            span = slice(block * self._block_bytes, (block + 1) * self._block_bytes)
            durable[span] = file.content[span]
        file.durable, file.dirty = bytes(durable), set()

    def sync_folder(self, path: Path) -> None:
        """See OsLogFiles."""
        self._change("sync_folder", path.name)
        folder = self._find(path)
        assert isinstance(folder, _Folder)
        folder.durable, folder.changes = dict(folder.names), []

    def make_folder(self, path: Path) -> None:
        """See OsLogFiles."""
        node = self._root
        for name in path.parts[1:]:
            if name not in node.names:
                self._change("make_folder", name)
                node.change(**{name: _Folder()})
            child = node.names[name]
            assert isinstance(child, _Folder)
            node = child

    def remove_folder(self, path: Path) -> None:
        """See OsLogFiles."""
        parent = self._find(path.parent)
        assert isinstance(parent, _Folder)
        if path.name in parent.names:
            self._change("remove_folder", path.name)
            parent.change(**{path.name: None})

    def names(self, path: Path) -> list[str]:
        """See OsLogFiles."""
        try:
            folder = self._find(path)
        except FileNotFoundError:
            return []
        assert isinstance(folder, _Folder)
        return list(folder.names)

    def is_folder(self, path: Path) -> bool:
        """See OsLogFiles."""
        try:
            return isinstance(self._find(path), _Folder)
        except FileNotFoundError:
            return False

    def rename(self, source: Path, target: Path) -> None:
        """See OsLogFiles."""
        self._change("rename", source.name)
        folder = self._find(source.parent)
        assert isinstance(folder, _Folder)
        assert source.parent == target.parent, "within one folder"
        folder.change(**{target.name: folder.names[source.name], source.name: None})

    def unlink(self, path: Path) -> None:
        """See OsLogFiles."""
        folder = self._find(path.parent)
        assert isinstance(folder, _Folder)
        if path.name in folder.names:
            self._change("unlink", path.name)
            folder.change(**{path.name: None})

    def modified_ms(self, descriptor: int) -> int:
        """See OsLogFiles."""
        return self._file(descriptor).modified_ms

    def set_modified_ms(self, descriptor: int, modified_ms: int) -> None:
        """See OsLogFiles."""
        self._file(descriptor).modified_ms = modified_ms

    def lock(self, descriptor: int) -> None:
        """See OsLogFiles."""
        self._file(descriptor)

    def _file(self, descriptor: int) -> _File:
        self._check()
        return self._open[descriptor][0]

    def _find(self, path: Path) -> _File | _Folder:
        self._check()
        node: _File | _Folder = self._root
        for name in path.parts[1:]:
            if not isinstance(node, _Folder) or name not in node.names:
                raise FileNotFoundError(errno.ENOENT, "not there", str(path))
            node = node.names[name]
        return node

    def _check(self) -> None:
        if self._off:
            raise PowerCut

    def _change(self, operation: str, name: str) -> None:
        self._check()
        self.changes += 1
        if self.changes_left is not None:
            self.changes_left -= 1
            if self.changes_left < 0:
                self._off = True
                raise PowerCut
        self.before(operation, name)
