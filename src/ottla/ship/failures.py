"""Says why shipping stopped, as one sentence for a person."""


class ShipFailedError(Exception):
    """The shipper cannot continue; the text says what failed, why, and what to do."""


class ProducerLostError(Exception):
    """The producer is unusable; a new one continues from the saved state and from what the topic holds."""
