"""Aggregates logs: lines of any services to one table, error rates per window, full-text find, a report page.

`parse` is a function DataFrame -> DataFrame on the source's columns; `run` is the pipeline; `find` searches the table
that it writes, without Spark. See docs/pipelines/logs.md.
"""
