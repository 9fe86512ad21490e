"""The handlers of the node's APIs, one module per API key; `broker/served.py` is their table."""
