"""Libraries that only some installations have, and the extra of `pip install` that brings each."""

from collections.abc import Mapping
from importlib.util import find_spec

from chorale.synth.errors import Unavailable

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "plot": ("matplotlib",),
    "tune": ("ray", "optuna", "mlflow", "sqlalchemy", "threadpoolctl", "jinja2"),
    "serve": ("ray.serve", "fastapi", "starlette", "uvicorn", "limits", "prometheus_client"),
}
"""Name of the extra -> the modules that it adds to the core; pyproject.toml has the distributions."""

_EXTRA_OF = {module: extra for extra, modules in EXTRAS.items() for module in modules}


def missing_extra(error: ModuleNotFoundError) -> Unavailable | None:
    """Return the error that names the missing extra, or None if no extra installs the module."""
    name = error.name or ""
    extra = _EXTRA_OF.get(".".join(name.split(".")[:2])) or _EXTRA_OF.get(name.partition(".")[0])
    return None if extra is None else _unavailable(extra, name)


def require(module: str) -> None:
    """Raise Unavailable if `module`, which belongs to an extra, is not installed; nothing is imported."""
    try:
        is_there = find_spec(module) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise _unavailable(_EXTRA_OF[module], module)


def _unavailable(extra: str, module: str) -> Unavailable:
    way_out = f"run: pip install 'chorale-collectives[{extra}]'"
    return Unavailable(f"this needs the extra {extra!r}, because there is {{}}", f"no module {module}", way_out)
