"""`torch.utils`."""

from __future__ import annotations

from . import data as data
