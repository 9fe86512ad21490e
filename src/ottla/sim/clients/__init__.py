"""Simulated client processes, and what they were told.

client.py        one client process                    kafka.py    requests and answers of any Kafka client
batches.py       record batches, written anew          workload_view.py   what a client asks of its workload
producers.py  consumers.py  readers.py  committers.py  admins.py  share_clients.py    who there may be
history.py  share_history.py    what clients were told, checked as it is written down
"""
