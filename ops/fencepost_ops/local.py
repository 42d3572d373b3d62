"""Everything local: servers of our own, supervised processes, and folders with one owner."""

from fencepost_ops.folders import DataDirLock, FolderTakenError, TemporaryFolder
from fencepost_ops.postgres import LocalPostgres
from fencepost_ops.processes import Ending, Leashed, LocalServerError, ProcessError
from fencepost_ops.supervisor import ProcessGroup
from fencepost_ops.valkey import LocalValkey

__all__ = [
    "DataDirLock",
    "Ending",
    "FolderTakenError",
    "Leashed",
    "LocalPostgres",
    "LocalServerError",
    "LocalValkey",
    "ProcessError",
    "ProcessGroup",
    "TemporaryFolder",
]
