"""Draws lines and bars as SVG, without styles or scripts; the page's table beside them holds the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

WIDTH, HEIGHT = 240, 48


def line(values: Sequence[float | None], label: str) -> Markup:
    """A line of values at equal distances; gaps where a value is None. `label`: what a screen reader says."""
    known = [each for each in values if each is not None]
    top = max(known, default=0) or 1
    step = WIDTH / max(1, len(values) - 1)
    strokes: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            strokes.append([])
        else:
            strokes[-1].append(f"{place * step:.1f},{HEIGHT - 2 - (HEIGHT - 4) * value / top:.1f}")
    drawn = "".join(f'<polyline points="{" ".join(points)}"/>' for points in strokes if points)
    return _drawing("line", label, f"0 0 {WIDTH} {HEIGHT}", drawn)


def bar(parts: Sequence[tuple[str, float]], label: str, total: float | None = None) -> Markup:
    """One bar of parts: (a word, its amount). The word is the part's class, and its title."""
    whole = total or sum(amount for _, amount in parts) or 1
    drawn, at = "", 0.0
    for word, amount in parts:
        width = min(100.0 - at, 100 * max(0.0, amount) / whole)
        drawn += (
            f'<rect class="{escape(class_of(word))}" x="{at:.2f}" y="0" width="{width:.2f}" height="8">'
            f"<title>{escape(word)}: {amount:,.0f}</title></rect>"
        )
        at += width
    return _drawing("bar", label, "0 0 100 8", drawn)


def class_of(word: str) -> str:
    """The class of a part, which has its colour."""
    return f"part-{''.join(word.split())}"


def legend(parts: Sequence[tuple[str, float | None]]) -> Markup:
    """The colours of a bar's parts, with their words and amounts."""
    rows = [
        Markup('<li><span class="swatch {}"></span> {}: {}</li>').format(
            class_of(word), word, "?" if amount is None else f"{amount:,.0f}"
        )
        for word, amount in parts
    ]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(rows))


def _drawing(kind: str, label: str, box: str, drawn: str) -> Markup:
    return Markup(
        f'<svg class="{kind}" viewBox="{box}" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f"{drawn}</svg>"
    )
