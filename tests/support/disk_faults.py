# SPDX-License-Identifier: Apache-2.0
"""What happens to the disk under a sink's path while a daemon runs. Some of it takes root: see :func:`find_why_no_mount`.

Each fault gives the path that the sink is to have, begins and ends when the test says so, and leaves nothing mounted.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Final, Self

from tests.support.stalling_sinks import STALL

_HELD_UP_S: Final = 0.8
_FREE_S: Final = 0.2


def find_why_no_mount() -> str | None:
    """Return why this process may not mount, which root in a container need not; None if it may."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            _mount("-t", "tmpfs", "tmpfs", folder)
        except OSError as error:
            return str(error)
        except subprocess.CalledProcessError as error:
            return str(error.stderr, errors="replace").strip()
        _unmount(Path(folder))
        return None


def find_why_no_freeze(home: Path) -> str | None:
    """Return why this process may not freeze a file system of its own, for which the kernel needs loop devices; or None."""
    try:
        with FrozenDisk(home) as disk:
            disk.begin()
            disk.end()
    except OSError as error:
        return str(error)
    except subprocess.CalledProcessError as error:
        return f"{error.cmd[0]}: {str(error.stderr, errors='replace').strip()}"
    return None


class DiskFault:
    """A folder ``landing`` in a folder of its own, to which something happens. A context manager.

    ``fails`` says whether the sink must notice, ``spoils`` which of the partitions' folders are concerned (None: all).
    """

    sink = "jsonl"
    """The type of the sink that is to land there."""
    fails = True
    spoils: frozenset[int] | None = None

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = home / "landing"
        home.mkdir()

    @property
    def name(self) -> str:
        """What it is."""
        return type(self).__name__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        return

    def begin(self) -> None:
        """Let it happen."""
        raise NotImplementedError

    def end(self) -> None:
        """Put everything back as it was."""
        raise NotImplementedError

    def strays(self) -> list[Path]:
        """Return what was written where nothing should be; asked before the end."""
        return []


class NoFault(DiskFault):
    """Nothing happens."""

    fails = False

    def begin(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class FullDisk(DiskFault):
    """A volume of a few MiB, of which something else has taken nearly all."""

    _SIZE: Final = 8 << 20

    def __enter__(self) -> Self:
        self.path.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={self._SIZE}", "tmpfs", str(self.path))
        return self

    def __exit__(self, *_exc: object) -> None:
        _unmount(self.path)

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    def begin(self) -> None:
        """Take every byte."""
        with self._ballast.open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(1 << 12))

    def end(self) -> None:
        """Give them back."""
        self._ballast.unlink()


class FullDiskForParquet(FullDisk):
    """The same under a sink whose files are written by Arrow, and at their end."""

    sink = "parquet"


class UnmountedVolume(DiskFault):
    """The volume is taken away from under its mount point, and brought back."""

    def __enter__(self) -> Self:
        (self.home / "volume").mkdir()
        self.path.mkdir()
        _mount("--bind", str(self.home / "volume"), str(self.path))
        return self

    def __exit__(self, *_exc: object) -> None:
        _unmount(self.path)

    def begin(self) -> None:
        """Take it away."""
        _unmount(self.path)

    def end(self) -> None:
        """Bring it back."""
        _mount("--bind", str(self.home / "volume"), str(self.path))

    def strays(self) -> list[Path]:
        """Return what landed in the mount point."""
        return list(self.path.iterdir())


class FrozenDisk(DiskFault):
    """A file system of its own, which is frozen: every write waits in the kernel, and no signal ends it."""

    _SIZE: Final = 64 << 20
    _LONGEST_S: Final = 90.0
    """It thaws by itself after this: a process that waits there could not be killed."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._thaw = threading.Timer(self._LONGEST_S, self.end)

    def __enter__(self) -> Self:
        image = self.home / "image"
        with image.open("wb") as out:
            out.truncate(self._SIZE)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True)
        self.path.mkdir()
        _mount("-o", "loop", str(image), str(self.path))
        (self.path / "lost+found").rmdir()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.end()
        _unmount(self.path)

    def begin(self) -> None:
        """Freeze it."""
        self._thaw.start()
        subprocess.run(["fsfreeze", "--freeze", str(self.path)], check=True, capture_output=True)

    def end(self) -> None:
        """Thaw it; one that is not frozen is fine."""
        self._thaw.cancel()
        subprocess.run(["fsfreeze", "--unfreeze", str(self.path)], check=False, capture_output=True)


class SwappedFolder(DiskFault):
    """Another, empty folder takes the path."""

    def begin(self) -> None:
        """Swap."""
        self.path.rename(self.home / "away")
        self.path.mkdir()

    def end(self) -> None:
        """Swap back."""
        self.path.rename(self.home / "other")
        (self.home / "away").rename(self.path)

    def strays(self) -> list[Path]:
        """Return what landed in the other folder."""
        return list(self.path.iterdir())


class SpoiltPartition(DiskFault):
    """The folder of partition 0 becomes something that is no folder."""

    spoils = frozenset({0})

    @property
    def _folder(self) -> Path:
        (folder,) = self.path.glob("topic=*/partition=0")
        return folder

    def begin(self) -> None:
        """Spoil it."""
        folder = self._folder
        folder.rename(self.home / "partition")
        folder.touch()

    def end(self) -> None:
        """Mend it."""
        folder = self._folder
        folder.unlink()
        (self.home / "partition").rename(folder)


class SlowDisk(DiskFault):
    """Writes are held up most of the time, by the sink itself."""

    sink = "stalling-jsonl"
    fails = False

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._hold_up, name="slow disk", daemon=True)

    def __exit__(self, *_exc: object) -> None:
        if self._thread.is_alive():
            self.end()

    def begin(self) -> None:
        """Slow down."""
        self._thread.start()

    def end(self) -> None:
        """Let go."""
        self._over.set()
        self._thread.join(10)

    def _hold_up(self) -> None:
        stall = self.home / STALL
        while not self._over.is_set():
            stall.touch()
            self._over.wait(_HELD_UP_S)
            stall.unlink()
            self._over.wait(_FREE_S)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def _unmount(path: Path) -> None:
    """Take away what is mounted there, though it is in use; nothing mounted is fine."""
    subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)
