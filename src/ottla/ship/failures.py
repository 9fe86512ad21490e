"""Says why shipping stopped, as one sentence for a person."""


class ShipFailed(Exception):
    """It cannot go on: what, why, and what to do."""


class ProducerLost(Exception):
    """The producer cannot be used any more; a new one goes on from what was saved and what the topic holds."""
