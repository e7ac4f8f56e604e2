# SPDX-License-Identifier: Apache-2.0
"""File systems that fail and die on request."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
from collections.abc import Callable
from pathlib import Path

from consumerd.landing.filesystem import OsFileSystem


class RecordingFileSystem(OsFileSystem):
    """The real one, which notes every change it is asked for and can be told to fail.

    ``calls`` has ``(operation, name)``, the name of the file or folder concerned. ``before`` is called with them first
    and may raise, kill, or wait.
    """

    def __init__(self, before: Callable[[str, str], None] = lambda operation, name: None) -> None:
        self.calls: list[tuple[str, str]] = []
        self.before = before
        self._names: dict[int, str] = {}

    def _note(self, operation: str, name: str) -> None:
        self.calls.append((operation, name))
        self.before(operation, name)

    def make_folders(self, path: Path) -> None:
        """See FileSystem."""
        self._note("make_folders", path.name)
        super().make_folders(path)

    def create(self, path: Path) -> int:
        """See FileSystem."""
        self._note("create", path.name)
        descriptor = super().create(path)
        self._names[descriptor] = path.name
        return descriptor

    def write(self, descriptor: int, data: bytes | memoryview) -> None:
        """See FileSystem."""
        self._note("write", self._names[descriptor])
        super().write(descriptor, data)

    def truncate(self, descriptor: int) -> None:
        """See FileSystem."""
        self._note("truncate", self._names[descriptor])
        super().truncate(descriptor)

    def sync(self, descriptor: int) -> None:
        """See FileSystem."""
        self._note("sync", self._names[descriptor])
        super().sync(descriptor)

    def sync_path(self, path: Path) -> None:
        """See FileSystem."""
        self._note("sync_path", path.name)
        super().sync_path(path)

    def link(self, source: Path, target: Path) -> None:
        """See FileSystem."""
        self._note("link", target.name)
        super().link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """See FileSystem."""
        self._note("replace", target.name)
        super().replace(source, target)

    def sync_folder(self, path: Path) -> None:
        """See FileSystem."""
        self._note("sync_folder", path.name)
        super().sync_folder(path)

    def unlink(self, path: Path) -> None:
        """See FileSystem."""
        self._note("unlink", path.name)
        super().unlink(path)

    def remove_tree(self, path: Path) -> None:
        """See FileSystem."""
        self._note("remove_tree", path.name)
        super().remove_tree(path)


def fail_at(number: int, code: int = errno.EIO) -> Callable[[str, str], None]:
    """Return a ``before`` that lets the ``number``-th change, from 0, fail, and only that."""
    seen = iter(range(number + 1))

    def before(_operation: str, _name: str) -> None:
        if next(seen, None) == number:
            raise OSError(code, os.strerror(code))

    return before


class PowerCut(BaseException):
    """The machine is off: the file system does nothing any more."""


class _Node:
    """A file (``content``) or a folder (``names``), with what is durable of it."""

    def __init__(self, *, folder: bool, modified_ns: int = 0) -> None:
        self.content = bytearray()
        self.durable_content = b""
        self.names: dict[str, _Node] = {}
        self.durable_names: dict[str, _Node] = {}
        self.folder = folder
        self.modified_ns = modified_ns


class MemoryFileSystem:
    """A file system in memory that loses what was not synced when the power is cut.

    ``changes_left`` counts down with each change; at 0 the power goes. :meth:`restore` gives it back: of each file at
    least what was synced is there and perhaps more, and of each folder's changes that were not synced any may have
    happened or not.
    """

    def __init__(self, random_source: random.Random) -> None:
        self.changes_left: int | None = None
        self._random = random_source
        self._root = _Node(folder=True)
        self._open: dict[int, _Node] = {}
        self._next = 1
        self._off = False

    def restore(self) -> None:
        """Switch the power on again, if it was off."""
        if not self._off:
            return
        self._lose(self._root)
        self._open = {}
        self._off = False
        self.changes_left = None

    def make_folders(self, path: Path) -> None:
        """See FileSystem."""
        node = self._root
        for name in path.parts[1:]:
            if name not in node.names:
                self._change()
                node.names[name] = _Node(folder=True)
            node = node.names[name]

    def create(self, path: Path) -> int:
        """See FileSystem."""
        self._change()
        folder = self._find(path.parent)
        if path.name in folder.names:
            raise FileExistsError(errno.EEXIST, "taken", str(path))
        self._next += 1
        folder.names[path.name] = self._open[self._next] = _Node(folder=False, modified_ns=self._next)
        return self._next

    def write(self, descriptor: int, data: bytes | memoryview) -> None:
        """See FileSystem."""
        node = self._open[descriptor]
        if self.changes_left == 1:
            node.content += data[: self._random.randint(0, len(data))]
        self._change()
        node.content += data
        self._next += 1
        node.modified_ns = self._next

    def truncate(self, descriptor: int) -> None:
        """See FileSystem. What was durable is lost at once, or not before the next sync."""
        self._change()
        node = self._open[descriptor]
        node.content.clear()
        if self._random.random() < 0.5:
            node.durable_content = b""

    def sync(self, descriptor: int) -> None:
        """See FileSystem."""
        self._change()
        node = self._open[descriptor]
        node.durable_content = bytes(node.content)

    def sync_path(self, path: Path) -> None:
        """See FileSystem."""
        self._change()
        node = self._find(path)
        node.durable_content = bytes(node.content)

    def modified_ns(self, descriptor: int) -> int:
        """See FileSystem."""
        return self._open[descriptor].modified_ns

    def set_modified_ns(self, descriptor: int, modified_ns: int) -> None:
        """See FileSystem."""
        self._open[descriptor].modified_ns = modified_ns

    def close(self, descriptor: int) -> None:
        """See FileSystem."""
        self._check()
        del self._open[descriptor]

    def link(self, source: Path, target: Path) -> None:
        """See FileSystem."""
        self._change()
        node, folder = self._find(source), self._find(target.parent)
        if target.name in folder.names:
            raise FileExistsError(errno.EEXIST, "taken", str(target))
        folder.names[target.name] = node

    def replace(self, source: Path, target: Path) -> None:
        """See FileSystem."""
        self._change()
        node = self._find(source)
        self._find(target.parent).names[target.name] = node
        del self._find(source.parent).names[source.name]

    def is_same(self, descriptor: int, path: Path) -> bool:
        """See FileSystem."""
        try:
            return self._find(path) is self._open[descriptor]
        except FileNotFoundError:
            return False

    def sync_folder(self, path: Path) -> None:
        """See FileSystem."""
        self._change()
        node = self._find(path)
        node.durable_names = dict(node.names)

    def unlink(self, path: Path) -> None:
        """See FileSystem."""
        self._change()
        self._find(path.parent).names.pop(path.name, None)

    def names(self, path: Path) -> list[str]:
        """See FileSystem."""
        try:
            return list(self._find(path).names)
        except FileNotFoundError:
            return []

    def walk(self, path: Path) -> list[Path]:
        """See FileSystem."""
        found = []
        for name in self.names(path):
            if self._find(path / name).folder:
                found += [name / below for below in self.walk(path / name)]
            else:
                found.append(Path(name))
        return found

    def remove_tree(self, path: Path) -> None:
        """See FileSystem."""
        for name in self.names(path):
            if self._find(path / name).folder:
                self.remove_tree(path / name)
            else:
                self.unlink(path / name)
        self._change()
        with contextlib.suppress(FileNotFoundError):
            self._find(path.parent).names.pop(path.name, None)

    def read(self, path: Path) -> bytes:
        """See FileSystem."""
        return bytes(self._find(path).content)

    def size_and_mtime(self, path: Path) -> tuple[int, int]:
        """See FileSystem."""
        node = self._find(path)
        return len(node.content), node.modified_ns

    def open(self, path: Path) -> io.BytesIO:
        """See FileSystem."""
        return io.BytesIO(self.read(path))

    def export(self, target: Path) -> None:
        """Write everything to a real folder, for a reader that knows nothing of this one."""
        self._export(self._root, target)

    def _export(self, node: _Node, target: Path) -> None:
        target.mkdir(exist_ok=True)
        for name, child in node.names.items():
            if child.folder:
                self._export(child, target / name)
            else:
                (target / name).write_bytes(child.content)
                os.utime(target / name, ns=(child.modified_ns, child.modified_ns))

    def _find(self, path: Path) -> _Node:
        self._check()
        node = self._root
        for name in path.parts[1:]:
            if name not in node.names:
                raise FileNotFoundError(errno.ENOENT, "not there", str(path))
            node = node.names[name]
        return node

    def _check(self) -> None:
        if self._off:
            raise PowerCut

    def _change(self) -> None:
        self._check()
        if self.changes_left is not None:
            self.changes_left -= 1
            if self.changes_left <= 0:
                self._off = True
                raise PowerCut

    def _lose(self, node: _Node) -> None:
        if not node.folder:
            kept = len(node.durable_content)
            if len(node.content) > kept:
                kept = self._random.randint(kept, len(node.content))
            node.content = node.content[:kept]
            node.durable_content = bytes(node.content)
            return
        for name in node.names.keys() | node.durable_names.keys():
            before, after = node.durable_names.get(name), node.names.get(name)
            if before is not after and self._random.random() < 0.5:
                if before is None:
                    del node.names[name]
                else:
                    node.names[name] = before
        node.durable_names = dict(node.names)
        for child in node.names.values():
            self._lose(child)
