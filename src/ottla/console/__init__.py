"""The web console: pages about a cluster, over Kafka's protocol alone, so that they work with any Kafka.

`serving` runs it, `app` builds it. A page is a module of `pages` (a dataclass and a function that makes it), a
template, and a line in `registry`. The package needs the extra `console`: starlette, uvicorn and jinja2.

    browser -> guard (Host, session, Origin, token, size of bodies, headers) -> app
        -> workers (a thread) -> page.load(context) -> access (a client) -> cluster
"""
