"""An application whose planners never answer, or take their process with them."""

import os
import signal
import time

from fencepost import App, Context, Turn

app = App("hanging")


@app.planner("one", version=1)
def one(_context: Context) -> Turn:
    """Never answers, in real time."""
    while True:
        time.sleep(1.0)


@app.planner("dies", version=1)
def dies(_context: Context) -> Turn:
    """Kills its process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return Turn(finish={})


app.allow("svc:*", tools=["*"])
