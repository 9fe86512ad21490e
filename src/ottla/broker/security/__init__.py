"""Controls access: the requests allowed before authentication, and each client's permissions.

    sasl.py           the dialogue of each connection with SASL
    scram.py          SCRAM-SHA-256 and SCRAM-SHA-512
    oauth.py          OAUTHBEARER
    jwks.py           the keys that check tokens
    certificates.py   principals from clients' certificates
    node_proof.py     the side of the node that is connected to, when nodes prove themselves
    authorizer.py     decides about access, in one place
    acls.py           Kafka's rules of ACLs
    audit.py          what the audit log records
    audit_details.py  what a request changes, for the audit log

The server encrypts connections (`server/tls.py`). `metadata` has the rows of credentials and ACLs.
"""
