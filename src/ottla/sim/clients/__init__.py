"""Simulates client processes, and records the answers that they receive.

client.py        one client process                    kafka.py    requests and answers of any Kafka client
batches.py       record batches, independent codec     workload_view.py   what a client asks of its workload
producers.py  consumers.py  readers.py  committers.py  admins.py  share_clients.py    the kinds of clients
history.py  share_history.py    the answers, checked when they are recorded
"""
