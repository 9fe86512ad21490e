"""Ships lines of files that grow, rotate and shrink to a topic. Speaks Kafka through confluent-kafka.

Pure: `rules` (which line goes on with the record before), `lines` (bytes to records), `follow` (one file: what is read,
waits, is acknowledged), `catalog` (which file is which: new, renamed, truncated, copied). Shells: `scan` (the file
system), `state` (what survives a crash), `topic` (Kafka), `runner` (the loop).
"""
