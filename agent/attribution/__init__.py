"""Which job has which GPU, from cgroups, hook files, the scheduler, drop-in directories and environments."""

from gpudiag.agent.attribution.reconcile import Attribution, Changes
from gpudiag.agent.attribution.run import RunningJob

__all__ = ["Attribution", "Changes", "RunningJob"]
