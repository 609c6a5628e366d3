# ruff: noqa: INP001 - MkDocs loads this file by its path
"""Hooks of MkDocs: what the pages in docs/ need to become a site that loads nothing from elsewhere.

- Diagrams in Mermaid, which code hosts draw, are replaced by the pictures in docs/pictures: the
  site then needs neither a script nor a network.
- Files outside docs that pages link to become pages of the site.
- A search ranks decisions and files of the checkout below the pages that use what it finds.
- Reference pages that scripts/reference-pages has written are added. Links to the code from which
  they were generated lead to them.
"""

import re
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PICTURES = DOCS / "pictures"
REFERENCE = ROOT / "build" / "reference"

REFERENCE_OF = {
    ROOT / "shared/turnfold/settings/values.py": "reference/settings.md",
    ROOT / "shared/turnfold/core/policy/presets.py": "reference/policy.md",
    ROOT / "shared/turnfold/core/policy/allowance.py": "reference/settings.md",
    ROOT / "shared/turnfold/errors.py": "reference/errors.md",
    ROOT / "shared/turnfold/contracts/catalog.py": "reference/requests.md",
    ROOT / "shared/turnfold/cli/application.py": "reference/commands.md",
    ROOT / "services/turnfold_worker/metrics.py": "reference/metrics.md",
    ROOT / "services/turnfold_query/metrics.py": "reference/metrics.md",
    ROOT / "services/turnfold_proxy/metrics.py": "reference/metrics.md",
}

MERMAID = re.compile(r"^```mermaid\n(?P<source>.*?)^```\n", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"^!\[(?P<text>[^\]]*)\]\((?P<path>[^)]*\.svg)\)$", re.MULTILINE)
LINK = re.compile(r"(?P<head>\]\()(?P<target>[^)\s]+)(?P<tail>\))")
FENCES = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".json": "json",
    ".toml": "toml",
    ".conf": "text",
    ".md": "markdown",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and one for each file outside docs that a page links to."""
    for path in sorted(REFERENCE.glob("*.md")):
        files.append(
            File.generated(
                config, f"reference/{path.name}", content=path.read_text(encoding="utf-8")
            )
        )
    outside = {
        target
        for file in files.documentation_pages()
        if file.abs_src_path and (DOCS / file.src_uri).is_file()
        for target in outside_targets(DOCS / file.src_uri)
    }
    for target in sorted(outside - set(REFERENCE_OF)):
        files.append(File.generated(config, page_of(target), content=content_of(target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace diagrams and images by inline pictures, and links to files outside docs."""
    source = page.file.src_uri
    if source.startswith(("decisions/", "files/")):
        page.meta["search"] = {"boost": 0.3}
    if not (DOCS / source).is_file():
        return markdown
    number = 0

    def drawn(match: re.Match[str]) -> str:
        nonlocal number
        number += 1
        name = f"{PurePosixPath(source).stem}-{number}.svg"
        return checked_picture(name, match["source"])

    markdown = MERMAID.sub(drawn, markdown)
    markdown = IMAGE.sub(lambda match: picture((DOCS / source).parent / match["path"]), markdown)
    parts = FENCES.split(markdown)
    parts[::2] = [LINK.sub(lambda match: relinked(match, source), part) for part in parts[::2]]
    return "".join(parts)


def checked_picture(name: str, source: str) -> str:
    """Return the picture of a diagram.

    Raises:
        PluginError: there is none, or it was drawn from another text.
    """
    path = PICTURES / name
    digest = sha256(source.encode()).hexdigest()[:12]
    if not path.is_file() or f'data-source="{digest}"' not in path.read_text(encoding="utf-8"):
        raise PluginError(
            f"docs/pictures/{name} does not show the diagram as it is now: "
            f'draw it again and write data-source="{digest}" into its first tag'
        )
    return picture(path)


def picture(path: Path) -> str:
    """Return an SVG file as a part of the page, so that it takes the colors of the theme."""
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return '<figure class="picture">\n' + "\n".join(lines) + "\n</figure>\n"


def resolved(target: str, source: Path) -> Path | None:
    """Return the file or folder outside docs that a link leads to; None for any other link."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
        return None
    path = (source.parent / parts.path).resolve()
    is_outside = path.is_relative_to(ROOT) and not path.is_relative_to(DOCS)
    return path if is_outside and path.exists() else None


def outside_targets(source: Path) -> set[Path]:
    """Return the files and folders outside docs that a page links to."""
    prose = FENCES.split(source.read_text(encoding="utf-8"))[::2]
    found = (resolved(match["target"], source) for part in prose for match in LINK.finditer(part))
    return {path for path in found if path is not None}


def page_of(path: Path) -> str:
    """Return the place of the page on the site that shows a file or a folder outside docs."""
    return REFERENCE_OF.get(path) or f"files/{path.relative_to(ROOT).as_posix()}.md"


def content_of(path: Path) -> str:
    """Return a page that shows a file, or all files of a folder."""
    title = f"# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_file():
        return title + code_of(path)
    paths = sorted(
        child for child in path.rglob("*") if child.is_file() and "__pycache__" not in child.parts
    )
    return title + "\n".join(
        f"## {child.relative_to(path).as_posix()}\n\n{code_of(child)}" for child in paths
    )


def code_of(path: Path) -> str:
    """Return a block of code with the content of a file."""
    text = path.read_text(encoding="utf-8").rstrip("\n")
    return f"``````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n``````\n"


def relinked(match: re.Match[str], source: str) -> str:
    """Return a link to the page of a file outside docs instead of to the file."""
    path = resolved(match["target"], DOCS / source)
    if path is None:
        return match[0]
    up = "../" * source.count("/")
    return f"{match['head']}{up}{page_of(path)}{match['tail']}"
