"""Keeps the metadata store of nodes on several machines in Apache ZooKeeper."""
