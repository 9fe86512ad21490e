"""The cluster's small truth: topics, leaders, configs, blocks of producer ids. Knows no Kafka API and no log."""
