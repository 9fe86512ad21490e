"""Access control: which operation on which resource a request needs, and who may do it."""
