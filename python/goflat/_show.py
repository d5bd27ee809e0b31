"""How the commands talk: paragraphs, tables, and progress while they work.

With lines and colours on a terminal where rich is installed; elsewhere the same in plain text.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Step = Callable[[str, float], None]  # what is done now, and which share is done already

BLOCK = "█"  # of bars; "#" where the encoding has none
STYLES = {
    "bit for bit": "green",
    "healthy": "bold green",
    "right, bit for bit": "green",
    "NO": "bold red",
}


class Table(NamedTuple):
    """Rows of cells, of which numbers stand to the right."""

    rows: list[list[str]]
    titles: Sequence[str] = ()
    left: Sequence[int] = (0,)  # columns of words


Part = str | Table


def text(parts: Sequence[Part]) -> str:
    """Return all parts as plain text, an empty line between any two."""
    return "\n\n".join(part if isinstance(part, str) else align(part) for part in parts)


def align(table: Table) -> str:
    """Return a table as lines."""
    rows = [list(table.titles), *table.rows] if table.titles else table.rows
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    put = [str.ljust if n in table.left else str.rjust for n in range(len(widths))]
    lines = ("  ".join(map(_put, put, row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _put(place: Callable[[str, int], str], cell: str, width: int) -> str:
    return place(cell, width)


def show(parts: Sequence[Part], to: TextIO) -> None:
    """Print all parts."""
    if not _has_blocks(to):
        print(text(parts).replace(BLOCK, "#"), file=to)
        return
    if not (to.isatty() and find_spec("rich")):
        print(text(parts), file=to)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=to, highlight=False)
    for n, part in enumerate(parts):
        if isinstance(part, Table):
            console.print(_rich(part))  # with an empty line before and after it
            continue
        if n and isinstance(parts[n - 1], str):
            console.print()
        console.print(Text(part, style=_style(part)), soft_wrap=True)


def _has_blocks(to: TextIO) -> bool:
    try:
        BLOCK.encode(to.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _rich(table: Table) -> Any:
    from rich import box
    from rich.table import Table as Rich
    from rich.text import Text

    made = Rich(box=box.SIMPLE_HEAD, show_header=bool(table.titles), pad_edge=False)
    for n, title in zip_longest(range(len(table.rows[0])), table.titles, fillvalue=""):
        made.add_column(title, justify="left" if n in table.left else "right", overflow="fold")
    for cells in table.rows:
        made.add_row(*(Text(cell, style=_style(cell)) for cell in cells))
    return made


def _style(words: str) -> str:
    if words.startswith("problem:"):
        return "bold red"
    return "cyan" if words.startswith(BLOCK) else STYLES.get(words, "")


# ---- progress ----


def quiet(doing: str, share: float) -> None:
    """Say nothing of a step."""


@contextmanager
def progress(to: TextIO) -> Iterator[Step]:
    """Give what is to be called before each step; on a terminal that draws, elsewhere nothing.

    Nothing is drawn between two calls, so that nothing disturbs what is measured.
    """
    if not to.isatty():
        yield quiet
    elif find_spec("rich"):
        with _bar(to) as step:
            yield step
    else:
        with _line(to) as step:
            yield step


@contextmanager
def _line(to: TextIO) -> Iterator[Step]:
    """Write one line, over and over, and clear it at the end."""

    def write(line: str) -> None:
        print(f"\r\x1b[K{line}", end="", file=to, flush=True)

    try:
        yield lambda doing, share: write(f"{share:4.0%}  {doing}")
    finally:
        write("")


@contextmanager
def _bar(to: TextIO) -> Iterator[Step]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = BarColumn(24), TextColumn("{task.percentage:3.0f}%  {task.description}")
    with Progress(*columns, console=Console(file=to), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda doing, share: bar.update(
            task, completed=share, description=doing, refresh=True
        )
