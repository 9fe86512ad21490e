"""Implements one node without any I/O of its own: requests go in, answers and effects come out.

`node.Node` routes requests; `api` has one file per API key. Each package between them owns one part of the node and
imports only the packages below it (ARCHITECTURE.md, section 3). The modules in this directory are shared by several
packages.
"""
