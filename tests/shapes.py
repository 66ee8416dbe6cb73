"""All shapes of grids of a given number of nodes."""


def shapes(nodes: int, least: int = 2) -> list[tuple[int, ...]]:
    """Return all ways to write `nodes` as a product of sizes >= `least`, sizes rising."""
    found: list[tuple[int, ...]] = [(nodes,)] if nodes >= least else []
    for size in range(least, int(nodes**0.5) + 1):
        if nodes % size == 0:
            found += [(size, *rest) for rest in shapes(nodes // size, size)]
    return found


def torus_specs(nodes: int) -> list[str]:
    """Return the specs of all tori of `nodes` nodes, up to the order of dimensions (which alternates)."""
    sizes = [shape if number % 2 else shape[::-1] for number, shape in enumerate(shapes(nodes))]
    return ["torus:" + "x".join(map(str, shape)) for shape in sizes]
