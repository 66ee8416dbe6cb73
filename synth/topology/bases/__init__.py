"""The shipped database of base graphs: small networks that expansions grow from, each with a claim to be re-derived."""
