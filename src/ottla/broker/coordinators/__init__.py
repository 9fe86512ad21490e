"""Coordinators of groups: the shards that decide, fed by requests, time and their logs."""
