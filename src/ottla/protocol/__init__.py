"""Bytes to messages and back: Kafka's wire protocol and its record batches. Imports nothing else of Ottla.

- `framing`: splits streams into frames and handles headers. `apis`: lists the APIs. `messages`: the generated requests
  and responses.
- `records`: the batches that the log stores. `coordinator_records`: the records of internal topics. `errors`: Kafka's
  codes.
"""
