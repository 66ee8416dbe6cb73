"""Removes passwords and tokens from addresses before text is shown or stored."""

import re
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

HIDDEN = "***"
"""Text that replaces a secret."""

_KEYS = "password|passwd|pwd|sslpassword|token|access_token|secret|api_key|apikey|access_key|secret_key"
# Matches scheme://user:password@host, even if the password contains characters that should have been escaped. The
# pattern is compiled on first use, because jobs import this module at every start.
_CREDENTIALS = r"(\w[\w+.-]*://[^\s\"'<>/:@]*):(?:[^\s\"'<>@]*@)+"
# http://token@host: over HTTP, a user name without a password is actually a token
_BARE_USER = r"(?i)(https?://)[^\s\"'<>/:@]+@"
_PARAMETER = rf"(?i)([?&;](?:{_KEYS})=)[^\s\"'<>&;#]+"


def redacted(text: str) -> str:
    """Return `text` with the passwords and tokens of all addresses replaced by `***`."""
    if "://" not in text:
        return text
    text = re.sub(_CREDENTIALS, rf"\1:{HIDDEN}@", text)
    return re.sub(_PARAMETER, rf"\1{HIDDEN}", re.sub(_BARE_USER, rf"\1{HIDDEN}@", text))


def redacted_document(document: Any) -> Any:
    """Return a copy of a JSON document with the passwords and tokens in all strings replaced by `***`."""
    if isinstance(document, str):
        return redacted(document)
    if isinstance(document, dict):
        return {key: redacted_document(value) for key, value in document.items()}
    return [redacted_document(value) for value in document] if isinstance(document, (list, tuple)) else document


def is_hidden(address: str) -> bool:
    """Return whether `address` contains `***` in place of a secret."""
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
