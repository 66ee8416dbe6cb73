"""Campaigns replayed on recorded measurements: the real search and the real answers, without machine and Ray."""
