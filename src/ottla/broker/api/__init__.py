"""The API keys this node serves, one module each.

A module states `KEY`, `VERSIONS` and `handle(node, request)`. ApiVersions advertises exactly this table, and
`tests/test_served.py` holds it against SKIPPED.md: a key stands here or there.
"""
