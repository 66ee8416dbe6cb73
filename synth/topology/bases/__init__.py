"""Contains the database of base graphs: small networks from which larger ones are built. Tests check its claims."""
