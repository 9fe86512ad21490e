"""One node, without any I/O of its own: requests in, answers and effects out.

`node.Node` routes; `topics`, `shards` and `upkeep` own what a node has; `api` has one file per API key; the other
modules are rules that several of them share.
"""
