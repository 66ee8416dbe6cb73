"""Pictures for notebooks: matplotlib drawings, drawn when they are shown, and networks as SVG."""

import tempfile
from collections.abc import Callable
from functools import cached_property
from html import escape
from pathlib import Path

from chorale.synth import Topology, Unavailable
from chorale.synth.extras import missing_extra
from chorale.tuner.plots.layout import node_positions

MAX_DRAWN_LINKS = 5_000
_UNIT, _MARGIN, _RADIUS, _TITLE = 46.0, 26.0, 11.0, 24.0
_STYLE = (
    "text{font:10px sans-serif;text-anchor:middle;dominant-baseline:central;fill:#fff}"
    ".title{font-size:13px;text-anchor:start;fill:#64748b}line{stroke:#94a3b8}"
)


def topology_svg(topology: Topology) -> str | None:
    """Return `topology` as SVG: ranks as numbered circles, switches as squares, a line for each pair of linked nodes.

    The width of a line is proportional to the square root of the bandwidth. Returns None for more than 5,000 links.
    """
    if len(topology.links) > MAX_DRAWN_LINKS:
        return None
    places = node_positions(topology)
    low, high = places.min(axis=0), places.max(axis=0)
    unit = min(_UNIT, (760.0 - 2 * _MARGIN) / max(float(high[0] - low[0]), 1.0))
    points = [(_MARGIN + unit * float(x - low[0]), _TITLE + _MARGIN + unit * float(high[1] - y)) for x, y in places]
    width, height = max(x for x, _ in points) + _MARGIN, max(y for _, y in points) + _MARGIN
    width = max(width, 260.0)
    radius = min(_RADIUS, 0.35 * unit)
    links = topology.links
    one_way: dict[tuple[int, int], float] = {}
    for src, dst, kind in zip(links.src.tolist(), links.dst.tolist(), links.bandwidth_class.tolist(), strict=True):
        if src != dst:
            one_way[src, dst] = one_way.get((src, dst), 0.0) + float(links.bandwidths[kind])
    rates: dict[tuple[int, int], float] = {}  # rate between each pair of linked nodes, in the faster direction
    for (src, dst), rate in one_way.items():
        pair = (min(src, dst), max(src, dst))
        rates[pair] = max(rates.get(pair, 0.0), rate)
    most = max(rates.values(), default=1.0)
    switches = f", {topology.switch_count} switches" if topology.switch_count else ""
    title = escape(f"{topology.spec[:60]}: {topology.compute_count} ranks{switches}, {len(links)} links")
    body = [f'<text class="title" x="8" y="14">{title}</text>']
    for (a, b), rate in rates.items():
        stroke = 0.8 + 2.4 * (rate / most) ** 0.5
        ends = f'x1="{points[a][0]:.1f}" y1="{points[a][1]:.1f}" x2="{points[b][0]:.1f}" y2="{points[b][1]:.1f}"'
        body.append(f'<line {ends} stroke-width="{stroke:.1f}"/>')
    for node, (x, y) in enumerate(points):
        name = f"<title>{escape(topology.node_ids[node])}</title>"
        if node < topology.compute_count:
            label = f'<text x="{x:.1f}" y="{y:.1f}">{node}</text>' if radius > 6 else ""
            shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="#0f766e"/>{label}'
        else:
            corner, side = f'x="{x - radius:.1f}" y="{y - radius:.1f}"', f"{2 * radius:.1f}"
            shape = f'<rect {corner} width="{side}" height="{side}" rx="2" fill="#64748b"/>'
        body.append(f"<g>{name}{shape}</g>")
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">'
    return f"{head}<style>{_STYLE}</style>{''.join(body)}</svg>"


class Picture:
    """A drawing; `draw` writes it into the given .svg, .png or .pdf file."""

    def __init__(self, draw: Callable[[Path], None]) -> None:
        self._draw = draw

    @cached_property
    def svg(self) -> str:
        """The drawing as SVG text. Raises Unavailable if the extra `plot` is not installed."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "picture.svg"
            self._drawn(path)
            return path.read_text()

    def save(self, path: str | Path) -> Path:
        """Write the drawing to `path`, whose extension is .svg, .png or .pdf; return the path."""
        self._drawn(Path(path))
        return Path(path)

    def _drawn(self, path: Path) -> None:
        try:
            self._draw(path)
        except ModuleNotFoundError as error:
            missing = missing_extra(error)
            raise missing or error from None

    def _repr_svg_(self) -> str | None:
        try:
            return self.svg
        except Unavailable:  # the notebook then shows text instead
            return None

    def __repr__(self) -> str:
        return "Picture: .svg is its text, .save(path) writes .svg, .png or .pdf"
