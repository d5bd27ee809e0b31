"""A run as a list of steps, one measurement each, and how far it has come."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Record = dict[str, Any]


class Step(NamedTuple):
    """One measurement, for one section of the results."""

    section: str
    name: str
    cost_s: float  # roughly: only remaining time depends on it
    measure: Callable[[], Record]


class Effort(NamedTuple):
    """How long to measure: rounds over all ways, and seconds of each way in a round."""

    rounds: int = 15
    block_s: float = 0.02
    compile_most: int = 100  # entries of a job whose loop is compiled as well
    quick: bool = False  # smallest jobs only, to see that everything runs


def take(steps: Sequence[Step], progress: Progress) -> tuple[Record, dict[str, float]]:
    """Return the records of each section, and its seconds."""
    found: Record = {step.section: [] for step in steps}
    seconds = dict.fromkeys(found, 0.0)
    with progress:
        for step in steps:
            start = perf_counter()
            progress.begin(step)
            found[step.section].append(step.measure())
            progress.end(step)
            seconds[step.section] += perf_counter() - start
    return found, {name: round(s, 1) for name, s in seconds.items()}


class Progress:
    """Shows nothing: what is not a terminal gets no progress."""

    def __init__(self, total_s: float) -> None:
        self.total_s = total_s
        self.done_s = 0.0  # of what was expected
        self.start = perf_counter()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""

    def begin(self, step: Step) -> None:
        """Show what is being measured."""

    def end(self, step: Step) -> None:
        self.done_s += step.cost_s

    def remaining_s(self) -> float:
        """Return what is left, at the pace so far; first what was expected."""
        elapsed = perf_counter() - self.start
        pace = elapsed / self.done_s if self.done_s else 1.0
        return max(0.0, (self.total_s - self.done_s) * pace)


class Line(Progress):
    """One line, written over and over."""

    def __init__(self, total_s: float, to: TextIO) -> None:
        super().__init__(total_s)
        self.to = to

    def begin(self, step: Step) -> None:
        share = round(100 * self.done_s / self.total_s) if self.total_s else 0
        left = clock(self.remaining_s())
        self.to.write(f"\r\x1b[K{share:3d} %  {left} left  {step.section}: {step.name}")
        self.to.flush()

    def __exit__(self, *_: object) -> None:
        self.to.write("\r\x1b[K")
        self.to.flush()


class Bar(Progress):
    """A bar of rich."""

    def __init__(self, total_s: float, to: TextIO) -> None:
        super().__init__(total_s)
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Rich

        columns = ("{task.percentage:3.0f} %", "{task.fields[left]} left", "{task.description}")
        texts = [TextColumn(text) for text in columns]
        console = Console(file=to)
        # Nothing is drawn while something is measured: a thread that refreshes takes time.
        self.bar = Rich(BarColumn(24), *texts, console=console, transient=True, auto_refresh=False)
        self.task = self.bar.add_task("", total=total_s, left=clock(total_s))

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def begin(self, step: Step) -> None:
        self._draw(f"{step.section}: {step.name}")

    def end(self, step: Step) -> None:
        super().end(step)
        self._draw("")

    def _draw(self, text: str) -> None:
        left = clock(self.remaining_s())
        self.bar.update(self.task, completed=self.done_s, left=left, description=text, refresh=True)


def progress_on(to: TextIO | None, total_s: float) -> Progress:
    """Return what suits the stream: a bar or a line on a terminal, nothing elsewhere."""
    if to is None or not to.isatty():
        return Progress(total_s)
    try:
        return Bar(total_s, to)
    except ImportError:
        return Line(total_s, to)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
