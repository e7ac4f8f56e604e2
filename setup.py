# SPDX-License-Identifier: Apache-2.0
"""Builds the native kernel, ``consumerd/wire/_kernel``, and copies ``config.example.yaml`` into the package, where
``consumerd config example`` finds it. Everything else about the package stands in pyproject.toml.

Each ``.pyx`` there is one extension module. Without a C compiler or Python's headers nothing is built, one line says so,
and consumerd runs on its pure Python path. ``CONSUMERD_REQUIRE_KERNEL=1`` makes that an error; ``CONSUMERD_KERNEL=off``
builds nothing anywhere. For a checkout::

    make kernel                                  # or: python setup.py build_ext --inplace

A wheel with the kernel is of one platform and Python, and its objects are stripped. One without it is tagged
``py3-none-any``. ``make wheels`` builds both kinds.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext  # Cython's own where Cython is installed, as it is here
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
KERNEL = Path("consumerd/wire/_kernel")  # setuptools wants paths relative to this file's folder
EXAMPLE = "config.example.yaml"
REQUIRED = os.environ.get("CONSUMERD_REQUIRE_KERNEL") == "1"
SWITCHED_OFF = os.environ.get("CONSUMERD_KERNEL", "").strip().lower() == "off"


def find_extensions() -> list[Extension]:
    """Return one extension a ``.pyx``; whichever of their headers or of this file changes, all are compiled again."""
    os.chdir(ROOT)
    depends = [*sorted(str(path) for pattern in ("*.h", "*.pxd") for path in KERNEL.glob(pattern)), "setup.py"]
    return [
        Extension(
            ".".join(source.with_suffix("").parts),
            [str(source)],
            depends=depends,
            include_dirs=[str(KERNEL)],
            # no -march: a wheel runs on any machine of its architecture; what needs more is chosen at run time
            extra_compile_args=["-O3"],
            optional=not REQUIRED,
        )
        for source in sorted(KERNEL.glob("*.pyx"))
    ]


class BuildKernel(build_ext):
    """Compiles the kernel where it can be compiled, and says in one line where it cannot."""

    def run(self) -> None:
        """Build; remember for whom."""
        self.for_checkout = bool(self.inplace)  # which setuptools resets while it builds
        if not self.for_checkout and sys.platform == "linux":
            for one in self.extensions:  # a checkout keeps its symbols, for debuggers and profilers
                one.extra_link_args = ["-Wl,--strip-all"]
        super().run()

    def build_extensions(self) -> None:
        """Compile, or leave out all, so that a kernel is never there in part.

        Raises:
            SystemExit: It cannot be compiled, and ``CONSUMERD_REQUIRE_KERNEL=1``.

        """
        missing = self._find_missing()
        if missing is None:
            super().build_extensions()
            missing = self._find_failed()
        if missing is not None and REQUIRED:
            raise SystemExit(f"CONSUMERD_REQUIRE_KERNEL=1, and the native kernel cannot be built: {missing}")
        self._remove_stale(
            set() if missing is not None else {self.get_ext_filename(one.name) for one in self.extensions}
        )
        if missing is not None:
            sys.stderr.write(f"consumerd: no native kernel, pure Python instead: {missing}\n")

    def build_extension(self, ext: Extension) -> None:
        """Compile one; where that fails, what an earlier build has made of it is not taken for its outcome."""
        try:
            super().build_extension(ext)
        except BaseException:
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
            raise

    def _find_missing(self) -> str | None:
        if SWITCHED_OFF:
            return "CONSUMERD_KERNEL=off"
        compiler = self.compiler.compiler_so[0]
        if shutil.which(compiler) is None:
            return f"there is no C compiler ({compiler})"
        header = Path(sysconfig.get_path("include"), "Python.h")
        if not header.exists():
            return f"Python's headers are missing ({header})"
        return None

    def _find_failed(self) -> str | None:
        failed = [each.name for each in self.extensions if not Path(self.get_ext_fullpath(each.name)).exists()]
        return f"{', '.join(failed)} did not compile" if failed else None

    def _remove_stale(self, built: set[str]) -> None:
        """Remove what an earlier build has left behind, of another version or of a source that has gone."""
        for top in (Path(self.build_lib), ROOT) if self.for_checkout else (Path(self.build_lib),):
            for part in top.joinpath(KERNEL).glob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"):
                if str(part.relative_to(top)) not in built:
                    part.unlink()


class BuildWithExample(build_py):
    """Copies the example of all settings into the package. A checkout, editable or not, uses the file itself."""

    def run(self) -> None:
        """Build, and copy."""
        super().run()
        if not self.editable_mode:
            self.copy_file(EXAMPLE, self._find_copy(), preserve_mode=False)

    def get_source_files(self) -> list[str]:
        """Return what a source distribution needs, too."""
        return [*super().get_source_files(), EXAMPLE]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:  # noqa: FBT001, FBT002 - setuptools' signature
        """Return what the build makes."""
        copies = [] if self.editable_mode else [self._find_copy()]
        return [*super().get_outputs(include_bytecode), *copies]

    def _find_copy(self) -> str:
        return str(Path(self.build_lib, "consumerd", EXAMPLE))


class TagWheel(bdist_wheel):
    """Tags a wheel without the kernel as pure Python, which runs on any Python and machine."""

    def run(self) -> None:
        """Build, look for the kernel, and pack."""
        self.run_command("build")
        built = Path(self.get_finalized_command("build").build_lib, KERNEL)
        if not list(built.glob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}")):
            self.distribution.ext_modules = []  # the install step then takes its files for pure Python, too
            self.root_is_pure = True
        super().run()


setup(
    ext_modules=find_extensions(),
    cmdclass={"build_ext": BuildKernel, "build_py": BuildWithExample, "bdist_wheel": TagWheel},
)
