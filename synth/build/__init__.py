"""Builds verified schedules and checked programs from requests, for campaigns, the service and commands."""
