"""What `fencepost audit` needs of an application: a dependency with a book. A file named in the environment
lists the effects; the tools are those of the ledger tests.
"""

import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from fencepost import App, BookedEffect
from fencepost.clock import parse_rfc3339

app = App("audited")
wallet = app.dependency("wallet")
app.dependency("slow")


@wallet.book
def read(since: datetime, until: datetime) -> Iterator[BookedEffect]:
    for line in Path(os.environ["AUDITED_BOOK"]).read_text().splitlines():
        told = json.loads(line)
        yield BookedEffect(**told | {"at": parse_rfc3339(told["at"])})
