"""Clients on real sockets, against the embedded broker."""
