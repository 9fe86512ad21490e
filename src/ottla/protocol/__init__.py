"""Bytes to messages and back: Kafka's wire protocol and its record batches. Imports nothing else of Ottla.

`framing` cuts and heads frames, `apis` lists what can be asked, `messages` holds the generated requests and responses,
`records` the batches that the log stores, `coordinator_records` what internal topics hold, `errors` Kafka's codes.
"""
