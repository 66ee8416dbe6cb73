"""Database of base graphs: small networks to build larger ones from, with stored claims that the tests re-derive."""
