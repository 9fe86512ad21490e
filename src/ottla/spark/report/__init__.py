"""Makes pages with charts: one self-contained HTML file that opens from the disk, without network.

`page` puts a page together from a headline and `Section`s of `timeline`, `histogram`, `bars` and `table`. `buckets`
chooses the step of a timeline, so that charts stay small whatever the length of the time.

Invariant: figures and texts are always text on the page (escaped, and its policy runs no script but its own).
"""

from ottla.spark.report.charts import (
    Bars,
    Chart,
    Series,
    Table,
    bars,
    buckets,
    histogram,
    step_seconds,
    table,
    timeline,
)
from ottla.spark.report.page import Section, drawn_from, page, write_page

__all__ = [
    "Bars",
    "Chart",
    "Section",
    "Series",
    "Table",
    "bars",
    "buckets",
    "drawn_from",
    "histogram",
    "page",
    "step_seconds",
    "table",
    "timeline",
    "write_page",
]
