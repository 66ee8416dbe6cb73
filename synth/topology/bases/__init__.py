"""Database of base graphs: small networks to build larger ones from, with claims about them that tests re-derive."""
