"""Optional libraries, and the extras of `pip install` that install them."""

from collections.abc import Mapping
from importlib.util import find_spec

from chorale.synth.errors import Unavailable

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "plot": ("matplotlib",),
    "tune": ("ray", "optuna", "mlflow", "sqlalchemy", "threadpoolctl", "jinja2"),
    "serve": ("fastapi", "starlette", "uvicorn", "limits", "prometheus_client"),
}
"""Maps the name of each extra to the modules that it installs. The distributions are listed in pyproject.toml."""

_EXTRA_OF = {module: extra for extra, modules in EXTRAS.items() for module in modules}


def missing_extra(error: ModuleNotFoundError) -> Unavailable | None:
    """Return an error that says which extra to install, or None if no extra installs the missing module."""
    name = error.name or ""
    extra = _EXTRA_OF.get(".".join(name.split(".")[:2])) or _EXTRA_OF.get(name.partition(".")[0])
    return None if extra is None else _unavailable(extra, name)


def require(module: str) -> None:
    """Raise Unavailable if `module`, which belongs to an extra, is not installed. The module is not imported."""
    try:
        is_there = find_spec(module) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise _unavailable(_EXTRA_OF[module], module)


def _unavailable(extra: str, module: str) -> Unavailable:
    way_out = f"run: pip install 'chorale-collectives[{extra}]'"
    return Unavailable(f"this needs the extra {extra!r}, because there is {{}}", f"no module {module}", way_out)
