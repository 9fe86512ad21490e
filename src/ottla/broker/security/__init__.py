"""Access control: what may be asked before authentication, and who may do what."""
