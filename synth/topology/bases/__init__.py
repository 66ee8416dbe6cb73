"""Database of base graphs: small networks from which larger ones are built. Tests check the claims stored with them."""
