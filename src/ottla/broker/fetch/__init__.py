"""Fetch: its sessions and its answers."""
