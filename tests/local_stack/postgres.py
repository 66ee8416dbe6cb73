"""PostgreSQL as its container image would set it up: a new cluster of one user, one password and one database."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from chorale.synth.errors import Unavailable

USERS = ("postgres", "nobody")
"""Who runs the server where this process is root, which PostgreSQL refuses to be: the first that exists."""


def _found(name: str) -> str | None:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)  # where Debian hides the server's
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, folders)))


def is_installed() -> bool:
    return _found("initdb") is not None and shutil.which("pg_isready") is not None


def program(name: str) -> str:
    """Return the path of a program of PostgreSQL; Unavailable if it is not installed."""
    if (path := _found(name)) is None:
        rule = "PostgreSQL must be installed"
        raise Unavailable(rule, f"no {name}", "install it, for example: apt-get install postgresql")
    return path


def server_user() -> str | None:
    """Return who is to run the server, None where this process may."""
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((user for user in USERS if user in known), None) if os.geteuid() == 0 else None


def make_cluster(folder: Path, environment: Mapping[str, str], user: str | None) -> tuple[str, ...]:
    """Make a cluster in `folder`, which must be empty; return the command of its server, without port and address."""
    password = folder.with_suffix(".password")
    password.write_text(environment["POSTGRES_PASSWORD"])
    folder.mkdir(mode=0o700)
    if user is not None:
        for path in (folder, password):
            shutil.chown(path, user)
    owner = environment["POSTGRES_USER"]
    words = [f"--pgdata={folder}", f"--username={owner}", f"--pwfile={password}", "--auth=scram-sha-256"]
    command = [program("initdb"), *words, "--encoding=UTF8", "--locale=C"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", user=user, check=False)
    password.unlink()
    if done.returncode:
        raise Unavailable("a PostgreSQL cluster must be made", done.stderr.strip(), "see the message of initdb")
    return (program("postgres"), "-D", str(folder), "-k", str(folder))


def make_database(port: int, environment: Mapping[str, str], name: str) -> None:
    owner = environment["POSTGRES_USER"]
    command = [program("createdb"), "--host=127.0.0.1", f"--port={port}", f"--username={owner}"]
    secret = {**os.environ, "PGPASSWORD": environment["POSTGRES_PASSWORD"]}
    done = subprocess.run([*command, name], env=secret, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(
            "another process is creating the database", done.stderr.strip(), "see the message of createdb"
        )
