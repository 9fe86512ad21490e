"""Ships lines of growing, rotating and shrinking files to a topic. Uses Kafka through confluent-kafka.

Pure modules: `rules` (which lines continue a record), `lines` (bytes to records), `follow` (one file: what is read,
pending and acknowledged), `catalog` (identifies files: new, renamed, truncated, copied). Modules with I/O: `scan` (the
file system), `state` (what survives a crash), `topic` (Kafka), `runner` (the loop).
"""
