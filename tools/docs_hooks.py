"""What `mkdocs build` needs beside mkdocs.yml: pages for files that lie outside of docs/.

The documents link to sources, examples and notebooks as they lie in the repository. The site has a
page for each of those, below source/, so that every link works there as well::

    docs/go.md:  [flatten](../flatten)          -> source/flatten/index.html: its doc.go, its files
                 [slices](../examples/go/...)    -> source/examples/...: the program
    README.md, CHANGELOG.md and the like         -> themselves, rendered
    *.ipynb                                      -> cells, with outputs if `make notebooks` has run
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
EXECUTED = ROOT / "build" / "notebooks"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
# GitHub reads ```python cuda as Python; here only the first word may stand.
MARKED = re.compile(r"^(```[a-z]+) [a-z]+$", re.MULTILINE)
LANGUAGES = {".c": "c", ".cu": "cuda", ".go": "go", ".h": "c", ".py": "python", ".sh": "bash"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for everything outside of docs/ that a page links to, and so on from there."""
    from mkdocs.structure.files import File  # not in the environment of the tests

    waiting = [file.src_uri for file in files.documentation_pages()]
    texts = {uri: (ROOT / "docs" / uri).read_text() for uri in waiting}
    while waiting:
        uri = waiting.pop()
        for path in outside(texts[uri], place(uri)):
            page = page_of(path)
            if page not in texts:
                texts[page] = render(path)
                files.append(File.generated(config, page, content=texts[page]))
                waiting.append(page)
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Turn links into those of the site."""
    here = page.file.src_uri

    def turn(found: re.Match[str]) -> str:
        path = target(found[1], place(here))
        if path is None:
            return found[1]
        aim = path[5:] if path.startswith("docs/") else page_of(path)
        return posixpath.relpath(aim, posixpath.dirname(here) or ".")

    return MARKED.sub(r"\1", LINK.sub(turn, markdown))


def place(uri: str) -> str:
    """Return the folder, in the repository, from which the links of a page are meant."""
    if not uri.startswith("source/"):
        return posixpath.dirname(f"docs/{uri}")
    path = uri.removeprefix("source/").removesuffix(".md")
    return posixpath.dirname(path)


def outside(text: str, folder: str) -> list[str]:
    """Return what `text` links to outside of docs/, as paths in the repository."""
    paths = {target(link, folder) for link in LINK.findall(text)}
    return sorted(path for path in paths if path and not path.startswith("docs/"))


def target(link: str, folder: str) -> str | None:
    """Return the path in the repository of what a link leads to; None if nothing is there."""
    path = posixpath.normpath(posixpath.join(folder, link))
    there = not path.startswith("..") and (ROOT / path).exists()
    return path if there else None


def page_of(path: str) -> str:
    """Return the page of a file or folder outside of docs/."""
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def render(path: str) -> str:
    """Write a file or folder of the repository as Markdown."""
    full = ROOT / path
    if full.is_dir():
        return folder(path)
    if full.suffix == ".md":
        return full.read_text()
    if full.suffix == ".ipynb":
        return notebook(full)
    return f"# {path}\n\n{fenced(full.read_text(), LANGUAGES.get(full.suffix, 'text'))}"


def folder(path: str) -> str:
    """Write what a folder has: what it says of itself, and its files."""
    files = sorted(file.name for file in (ROOT / path).iterdir() if file.name[0] not in "._")
    names = " ".join(f"`{file}`" for file in files)
    about = ROOT / path / "doc.go"
    shown = [about] if about.exists() else [ROOT / path / file for file in files]
    sources = [
        f"## {file.name}\n\n{fenced(file.read_text(), LANGUAGES[file.suffix])}"
        for file in shown
        if file.suffix in LANGUAGES
    ]
    return "\n\n".join([f"# {path}", f"Files: {names}", *sources])


def notebook(path: Path) -> str:
    """Write the cells of a notebook, and what they printed and drew where it was run."""
    run = EXECUTED / path.name
    cells = json.loads((run if run.exists() else path).read_text())["cells"]
    return "\n\n".join(text for cell in cells for text in cell_texts(cell))


def cell_texts(cell: dict[str, Any]) -> list[str]:
    """Write a cell and its outputs."""
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return [source]
    return [fenced(source, "python"), *filter(None, map(output_text, cell["outputs"]))]


def output_text(output: dict[str, Any]) -> str:
    """Write one output: its picture, else its text."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="what the cell draws" src="data:image/png;base64,{picture}">'
    text = "".join(data.get("text/plain", output.get("text", "")))
    return fenced(text, "text") if text.strip() else ""


def fenced(text: str, language: str) -> str:
    """Write a block of code; text that has fences itself gets a longer one."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`{3,}", text)), default=2))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
