"""Where the database is when nobody says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SERVICE_DATABASE = Path("/var/lib/gpudiag/gpudiag.db")


def default_url(environ: Mapping[str, str], service_database: Path = SERVICE_DATABASE) -> str:
    """GPUDIAG_DB, else the service's database when it can be read, else one in the user's data directory."""
    if environ.get("GPUDIAG_DB"):
        return environ["GPUDIAG_DB"]
    if os.access(service_database, os.R_OK):
        return url_of(service_database)
    return url_of(user_database(environ))


def url_of(database: Path) -> str:
    """The URL of a file, whatever its name."""
    return "sqlite:///" + str(database).replace("%", "%25").replace("?", "%3F")


def user_database(environ: Mapping[str, str]) -> Path:
    """`$XDG_DATA_HOME/gpudiag/gpudiag.db`, by default under ~/.local/share."""
    home = environ.get("XDG_DATA_HOME")
    base = Path(home) if home else Path(environ.get("HOME", "~")).expanduser() / ".local" / "share"
    return base / "gpudiag" / "gpudiag.db"
