"""Record batches to Arrow and back, by loops that are compiled once for a machine."""
