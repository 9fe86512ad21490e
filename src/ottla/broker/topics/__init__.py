"""Manages topics: their names, creation, adoption from directories, and removal."""
