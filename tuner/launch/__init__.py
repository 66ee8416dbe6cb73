"""One launch of a campaign: its loop, the requests that it makes, and the records of its trials."""
