"""Topologies as emulated networks of Linux namespaces on this machine."""
