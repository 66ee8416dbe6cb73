"""From a request to a verified schedule and a checked program: the one path of campaigns, service and commands."""
