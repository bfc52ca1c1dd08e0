"""`torch.utils.data`."""

from __future__ import annotations

from .dataloader import DataLoader as DataLoader
from .dataloader import Dataset as Dataset
