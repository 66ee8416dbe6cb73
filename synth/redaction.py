"""Removal of passwords and tokens from addresses before texts are shown or stored."""

import re
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

HIDDEN = "***"
"""Replacement for a secret."""

_KEYS = "password|passwd|pwd|sslpassword|token|access_token|secret|api_key|apikey|access_key|secret_key"
# scheme://user:password@host, also where the password has characters that should have been escaped
# These are compiled at their first use: jobs read tables, and import this, at every start.
_CREDENTIALS = r"(\w[\w+.-]*://[^\s\"'<>/:@]*):(?:[^\s\"'<>@]*@)+"
# http://token@host: a server that is asked in HTTP has no use for a user without a password
_BARE_USER = r"(?i)(https?://)[^\s\"'<>/:@]+@"
_PARAMETER = rf"(?i)([?&;](?:{_KEYS})=)[^\s\"'<>&;#]+"


def redacted(text: str) -> str:
    """Return `text` with `***` for the passwords and tokens of all addresses in it."""
    if "://" not in text:
        return text
    text = re.sub(_CREDENTIALS, rf"\1:{HIDDEN}@", text)
    return re.sub(_PARAMETER, rf"\1{HIDDEN}", re.sub(_BARE_USER, rf"\1{HIDDEN}@", text))


def redacted_document(document: Any) -> Any:
    """Return a JSON document with every text in it redacted."""
    if isinstance(document, str):
        return redacted(document)
    if isinstance(document, dict):
        return {key: redacted_document(value) for key, value in document.items()}
    return [redacted_document(value) for value in document] if isinstance(document, (list, tuple)) else document


def is_hidden(address: str) -> bool:
    """Whether a secret of `address` was replaced by `***`."""
    return HIDDEN in address and redacted(address) == address


def split_credentials(address: str) -> tuple[str, str | None, str | None]:
    """Return (HTTP address without credentials, user or None, password or None)."""
    parts = urlsplit(address)
    credentials, at, host = parts.netloc.rpartition("@")
    if not at:
        return address, None, None
    user, colon, password = credentials.partition(":")
    bare = urlunsplit(parts._replace(netloc=host))
    return bare, unquote(user), unquote(password) if colon else None
