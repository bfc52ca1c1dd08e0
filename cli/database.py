"""Which database a command means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def database_url(db: str | None, environ: Mapping[str, str], config: Path | None = None) -> str:
    """`--db`, else GPUDIAG_DB, else `[storage] url` of the configuration, else the usual place.

    A configured file that this user may not read belongs to the service: then their own. Raises `InputError`.
    """
    from gpudiag.agent import configfile
    from gpudiag.storage.location import default_url

    if db or (config is None and environ.get("GPUDIAG_DB")):
        return db or environ["GPUDIAG_DB"]
    configured = configfile.load(config, environ).storage.url
    return configured if configured and not _is_closed(configured) else default_url(environ)


def _is_closed(url: str) -> bool:
    if not url.startswith("sqlite:///"):
        return False
    path = url.removeprefix("sqlite:///").partition("?")[0]
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:  # not there yet: `db upgrade` makes it
        return False
    return not os.access(path, os.R_OK)
