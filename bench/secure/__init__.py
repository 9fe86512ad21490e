"""What security costs: TLS, logins and ACLs, on a node and beside an Apache Kafka with the same certificates."""
