"""How the node under comparison is configured: as the Kafka peer is, and three of them as its three nodes."""

CONFIG = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "50"}
OF_CLUSTERS = {"min.insync.replicas": "2"}
