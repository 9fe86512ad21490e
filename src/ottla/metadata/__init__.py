"""The cluster's metadata: topics, leaders, configs, blocks of producer ids."""
