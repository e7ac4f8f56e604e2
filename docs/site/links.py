# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: what the pages link to outside of docs becomes part of the site, below ``repository/``.

Pages link to ``../README.md``, ``../config.example.yaml`` or ``../deploy/kubernetes``, as they stand in the repository. Text files
become pages, folders become pages that list their files, all else is copied. A link to what is not there fails the build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

_TOP = Path(__file__).resolve().parents[2]
_PLACE = "repository"
_CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^()\s:#][^()\s:#]*)(?=[#)])")
_LANGUAGES = {
    ".yaml": "yaml",
    ".yml": "yaml",
    ".py": "python",
    ".json": "json",
    ".sh": "sh",
    ".toml": "toml",
    ".service": "ini",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is linked to, and what that links to."""
    waiting = [(_source(file.src_uri), file.content_string) for file in files.documentation_pages()]
    while waiting:
        source, text = waiting.pop()
        for target in _targets(text):
            path = _resolve(source, target)
            uri = _uri(path)
            if files.get_file_from_path(uri) is None:
                content = _read(path)
                # linked to, so it needs no place in the navigation
                files.append(File.generated(config, uri, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
                if path.endswith(".md"):
                    waiting.append((path, content if isinstance(content, str) else content.decode()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - mkdocs' names
    """Rewrite links between files of the repository into links between pages of the site."""
    uri = page.file.src_uri
    if uri.startswith(f"{_PLACE}/") and not _source(uri).endswith(".md"):
        return markdown  # listings and quoted files are written with the site's links
    source, here = _source(uri), posixpath.dirname(uri)

    def rewrite(match: re.Match[str]) -> str:
        return posixpath.relpath(_uri(_resolve(source, match[1])), here or ".")

    parts, end = [], 0
    for code in _CODE.finditer(markdown):
        parts += [_LINK.sub(rewrite, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _LINK.sub(rewrite, markdown[end:])])


def _targets(text: str) -> list[str]:
    return _LINK.findall(_CODE.sub("", text))


def _source(uri: str) -> str:
    """Return a page's path in the repository."""
    if not uri.startswith(f"{_PLACE}/"):
        return f"docs/{uri}"
    path = uri.removeprefix(f"{_PLACE}/")
    return path if (_TOP / path).exists() else path.removesuffix(".md")


def _resolve(source: str, target: str) -> str:
    """Return the path in the repository of what a file links to. Raises PluginError if there is none."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path.startswith("..") or not (_TOP / path).exists():
        raise PluginError(f"{source} links to {target}: there is no {path} in the repository")
    return path


def _uri(path: str) -> str:
    """Return where a file of the repository is in the site's sources."""
    if path.startswith("docs/") and path.endswith((".md", ".png", ".svg")):
        return path.removeprefix("docs/")
    name = f"{_PLACE}/{path}"
    return name if path.endswith((".md", ".png", ".svg")) else f"{name}.md"


def _read(path: str) -> str | bytes:
    place = _TOP / path
    if place.is_dir():
        names = sorted(one.name + ("/" if one.is_dir() else "") for one in place.iterdir() if one.name != "__pycache__")
        return f"# {path}\n\nA folder of the repository.\n\n" + "".join(f"- `{name}`\n" for name in names)
    if path.endswith((".png", ".svg")):
        return place.read_bytes()
    text = place.read_text()
    return text if path.endswith(".md") else f"# {path}\n\n````{_LANGUAGES.get(place.suffix, 'text')}\n{text}\n````\n"
