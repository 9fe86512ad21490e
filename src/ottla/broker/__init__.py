"""One node, without any I/O of its own: requests in, answers and effects out.

`node.Node` routes; `api` has one file per API key; each room between them owns a part of the node and sees those below
it alone (ARCHITECTURE.md, section 3); the other modules are what several rooms share.
"""
