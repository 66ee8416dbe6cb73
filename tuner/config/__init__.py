"""What commands, campaigns and the service share on disk: the data home and what is held there."""
