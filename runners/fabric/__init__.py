"""Emulates topologies on this machine, as networks of Linux namespaces."""
