"""The connections that MLflow keeps to a database in a file."""


def forget_connections(uri: str) -> None:
    """Let MLflow open the database again, as in a new process: else it goes on with a file that was replaced."""
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as Registry  # noqa: PLC0415 - seconds
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as Tracking  # noqa: PLC0415
    from mlflow.tracking._model_registry.utils import _get_store_registry  # noqa: PLC0415
    from mlflow.tracking._tracking_service.utils import _tracking_store_registry  # noqa: PLC0415

    for store in (Registry, Tracking):
        for name in [name for name in store._engine_map if name == uri]:
            store._engine_map.pop(name).dispose()
    for registry in (_tracking_store_registry, _get_store_registry()):
        registry._get_store_with_resolved_uri.cache_clear()
