"""The I/O host around a node: the only package with asyncio."""
