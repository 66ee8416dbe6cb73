"""From a request to a verified schedule and a checked program: the path that campaigns, service and commands share."""
