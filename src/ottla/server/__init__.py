"""The shell around a node: the only room with asyncio."""
