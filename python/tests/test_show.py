"""How commands print: the same words on a terminal with rich, on one without, and in a pipe."""

from __future__ import annotations

import io
import re

import pytest

from goflat import _show

PARTS: list[_show.Part] = [
    "A paragraph with [brackets] and :smile: that are words.",
    _show.Table(
        [["one", "1.0 MiB", "NO"], ["eleven", "11.0 MiB", "bit for bit"]], ["way", "n", "?"]
    ),
    _show.Table([["bar", _show.BLOCK * 3]], left=(0, 1)),
    "problem: none",
    "healthy",
]


class Terminal(io.StringIO):
    """A terminal as far as programs can tell."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_show, "find_spec", lambda name: None)


def words(text: str) -> list[str]:
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    return [word for word in plain.split() if set(word) != {"─"}]


def shown(to: io.StringIO) -> str:
    _show.show(PARTS, to)
    return to.getvalue()


def test_plain_text() -> None:
    assert shown(io.StringIO()).splitlines()[2:7] == [
        "way            n            ?",
        "one      1.0 MiB           NO",
        "eleven  11.0 MiB  bit for bit",
        "",
        "bar  ███",
    ]


def test_a_terminal_without_rich_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    without_rich(monkeypatch)
    assert shown(Terminal()) == shown(io.StringIO())


def test_rich_has_the_same_words() -> None:
    pytest.importorskip("rich")
    text = shown(Terminal())
    assert words(text) == words(shown(io.StringIO()))
    assert re.search(r"\x1b\[1;31m *NO", text)


def test_bars_where_the_encoding_has_no_blocks() -> None:
    to = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    _show.show(PARTS, to)
    to.flush()
    assert b"bar  ###\n" in to.buffer.getvalue()  # type: ignore[attr-defined]


# ---- progress ----


def steps(to: io.StringIO) -> str:
    with _show.progress(to) as step:
        step("first", 0.0)
        step("second", 0.5)
    return to.getvalue()


def test_progress_says_nothing_in_a_pipe() -> None:
    assert steps(io.StringIO()) == ""


def test_progress_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    without_rich(monkeypatch)
    said = steps(Terminal()).split("\r\x1b[K")
    assert said == ["", "  0%  first", " 50%  second", ""]


def test_progress_is_cleared_when_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    without_rich(monkeypatch)
    to = Terminal()
    with pytest.raises(RuntimeError), _show.progress(to) as step:
        step("first", 0.0)
        raise RuntimeError
    assert to.getvalue().endswith("\r\x1b[K")


def test_progress_with_rich() -> None:
    pytest.importorskip("rich")
    said = " ".join(words(steps(Terminal())))
    assert re.search(r"0% first.* 50% second", said)
