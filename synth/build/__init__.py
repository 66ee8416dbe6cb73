"""From a request to a verified schedule and a checked program: shared by campaigns, service and commands."""
