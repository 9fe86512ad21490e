"""Reads records for the page of messages: within bounds of bytes and time, forwards, backwards or as they arrive.

Nothing here joins a group or commits an offset. Only `scan` sends requests.
"""
