"""Defines the configuration: its properties, their values and layers, and the resources that have one."""
