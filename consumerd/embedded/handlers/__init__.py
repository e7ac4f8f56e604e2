"""What answers each request: one module a family, no sockets."""
