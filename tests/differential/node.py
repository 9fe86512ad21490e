"""How the node under comparison is configured: as the Kafka peer is."""

CONFIG = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "50"}
