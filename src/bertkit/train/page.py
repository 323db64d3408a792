"""What all reports share: the page skeleton and its style, cards, tables, and plots as inline SVG.

A page is one file: it needs no network and no scripts, and follows the reader's light or dark mode. Cards and tables take
plain text and escape it; sections take HTML.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bertkit.atomic import write_text
from bertkit.train.run import flat

Panel = Callable[[Any], None]  # draws on an axis of a plot
BLUE, ORANGE, GREEN, GREY = "#2563eb", "#ea580c", "#059669", "#6b7280"
INK, LINE = "#111827", "#e5e7eb"
MODAL = {BLUE: "blue", ORANGE: "orange", GREEN: "green", GREY: "quiet", INK: "ink", LINE: "line"}  # CSS variables
LOOK: dict[Any, Any] = (
    dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK)
    | dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), GREY)
    | dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none")
    | {"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "font.size": 9}
    | {"svg.fonttype": "none", "svg.hashsalt": "bertkit"}  # text stays text; the same run gives the same file
)
STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def write_page(file: Path, title: str, subtitle: str, parts: Iterable[str], style: str = "") -> Path:
    """Writes a page of sections and other HTML under a title and a subtitle."""
    page = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)}</title>",
        f"<meta name='viewport' content='width=device-width'><style>{STYLE}{style}</style>",
        f"<h1>{escape(title)}</h1><div class='quiet'>{escape(subtitle)}</div>",
        *parts,
        "</html>",
    ]
    write_text(file, "\n".join(page))
    return file


def section(title: str, *parts: str, note: str = "") -> str:
    """Returns a heading, the note in grey if there is one, and the parts."""
    return "\n".join([f"<h2>{escape(title)}</h2>", f"<div class='quiet'>{escape(note)}</div>" if note else "", *parts])


def cards(figures: Mapping[str, str], notes: Mapping[str, str] | None = None) -> str:
    """Returns named figures in frames, some with a small note."""
    frames = []
    for name, value in figures.items():
        note = f"<small>{escape(notes[name])}</small>" if notes and name in notes else ""
        frames.append(f"<div class='card'>{escape(name)}<b>{escape(value)}</b>{note}</div>")
    return f"<div class='cards'>{''.join(frames)}</div>"


def table(rows: Iterable[Sequence[Any]], head: Sequence[str] = (), *, words: int = 2) -> str:
    """Returns a table whose first `words` columns hold text; the others hold numbers and are right-aligned."""
    lines = [_line(row, "td", words) for row in rows]
    return f"<div class='wide'><table>{''.join([_line(head, 'th', words), *lines])}</table></div>"


def spelled(settings: Mapping[str, Any]) -> dict[str, str]:
    """Flattens nested settings to dotted names, with the values as people write them."""
    return {name: _spelled(value) for name, value in flat(settings).items()}


def _spelled(value: Any) -> str:
    if isinstance(value, float):
        return str(float(f"{value:.9g}"))  # 0.0003, not 0.00030000000000000003
    return ", ".join(map(_spelled, value)) if isinstance(value, list) else str(value)


def draw(panels: Sequence[Panel], height: float = 2.8) -> str:
    """Returns one SVG with two panels per row; each panel draws on an axis."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(LOOK):
        lines = (len(panels) + 1) // 2
        figure = Figure((9.6, height * lines), layout="constrained")
        axes = figure.subplots(lines, 2, squeeze=False)
        for axis, panel in zip(axes.flat, panels, strict=False):
            panel(axis)
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    picture = stream.getvalue()[stream.getvalue().index("<svg") :]
    for colour, name in MODAL.items():
        picture = picture.replace(colour, f"var(--{name})")
    return picture


def curves(title: str, rows: list[dict[str, Any]], series: dict[str, str], *, floor: float | None = 0) -> Panel:
    """Returns a panel with fields of the metrics over steps, each in its colour; evaluations have markers."""

    def panel(axis: Any) -> None:
        for name, colour in series.items():
            points = [(row["step"], row[name]) for row in rows if name in row]
            if points:
                marker = "o" if name.startswith(("held", "dev")) else None
                label = name.replace("_", " ")
                axis.plot(*zip(*points, strict=True), color=colour, label=label, marker=marker, markersize=3, lw=1.4)
        axis.set_title(title, loc="left", fontsize=10)
        axis.set(xlabel="step", ylim=(floor, None))
        axis.grid(color=LINE)
        if len(series) > 1 and axis.lines:
            axis.legend(frameon=False, fontsize=8)

    return panel


def _line(cells: Sequence[Any], kind: str, words: int) -> str:
    made = (f"<{kind}{' class=number' if n >= words else ''}>{escape(str(cell))}</{kind}>" for n, cell in enumerate(cells))
    return f"<tr>{''.join(made)}</tr>" if cells else ""
