"""Design, verify and tune collective communication for a given network."""
