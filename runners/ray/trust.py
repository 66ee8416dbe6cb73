"""Checks whether a Ray cluster requires a token. In a cluster without one, anybody can run code on all its machines,
including this one once it has joined."""

import os

from chorale.synth.errors import InvalidInput, Unavailable

INSECURE_VARIABLE = "CHORALE_INSECURE_CLUSTER"
"""Environment variable that `--insecure-cluster` sets to 1, for this process and those that it starts."""

_CLIENT = "ray://"
_METHODS = {True: "/ray.rpc.RayletDriver/ClusterInfo", False: "/ray.rpc.NodeInfoGcsService/CheckAlive"}
_PATIENCE_S = 5.0


def require_authentication(address: str) -> None:
    """Raise InvalidInput if the cluster at HOST:PORT or ray://HOST:PORT answers requests without a token.

    A cluster that does not answer at all is accepted, because joining it will report the reason.
    """
    named = os.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")
    has_token = "RAY_AUTH_TOKEN" in os.environ or os.path.exists(named)
    answers = _answers_anybody(address)
    if answers is None and not has_token:
        way_out = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH=FILE to the token of the cluster"
        raise Unavailable("this Ray cluster needs a token", address, way_out)
    if answers and os.environ.get(INSECURE_VARIABLE) != "1":
        rule = "this Ray cluster does not authenticate its users: anybody who reaches it can run code in it ({})"
        way_out = (
            "start it with RAY_AUTH_MODE=token, or add --insecure-cluster if everybody who can reach it is trusted"
        )
        raise InvalidInput(rule, address, way_out)


def _answers_anybody(address: str) -> bool | None:
    """Return whether a request without a token is answered; None if the answer is that a token is missing."""
    import grpc  # noqa: PLC0415 - only needed to join a cluster

    is_client = address.startswith(_CLIENT)
    method = _METHODS[is_client]
    with grpc.insecure_channel(address.removeprefix(_CLIENT).partition("/")[0]) as channel:
        call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
        try:
            call(b"", timeout=_PATIENCE_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                return None
            return error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return True
