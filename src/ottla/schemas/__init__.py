"""Decodes keys and values that were written with a schema of a registry: Avro, Protobuf and JSON Schema.

`decoder.Decoder` is what commands and pages use. It asks the registry for schemas (`registry`) and decodes in a process
of its own (`process`, `worker`), so that no schema or value can use up the memory of the caller, or crash it. Decoding
needs the extra `schemas`.
"""
