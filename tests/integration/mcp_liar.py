"""A server that answers as it is told, with raw messages: by stdio as a program, by HTTP in a thread.

    python mcp_liar.py ANSWERS      # as JSON, see `Answers`

Nothing of it is the SDK's, which would not say such things. It imports little, so that it starts at once.
"""

import json
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LIST = {
    "resultType": "complete",
    "tools": [{"name": "write_note", "inputSchema": {"type": "object"}}],
    "ttlMs": 0,
    "cacheScope": "private",
}


class Answers:
    """What it says to a call, `<id>` standing for the call's. `unread`: it says so without having read it, to
    an id it guesses. `leaving`: what it says once nobody speaks to it any more. `status`: of HTTP.
    """

    def __init__(
        self, said: list[str], leaving: list[str] | None = None, *, unread: bool = False, status: int = 200
    ) -> None:
        self.said, self.leaving, self.unread, self.status = said, leaving or [], unread, status


def filled(said: list[str], ident: object) -> list[str]:
    return [one.replace("<id>", json.dumps(ident)) for one in said]


def listed(ident: object) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": ident, "result": LIST})


def command(answers: Answers) -> list[str]:
    """What starts it."""
    return [sys.executable, "-S", "-E", __file__, json.dumps(vars(answers))]


def main() -> None:
    answers = Answers(**json.loads(sys.argv[1]))

    def say(said: list[str]) -> None:
        sys.stdout.write("".join(one + "\n" for one in said))
        sys.stdout.flush()

    ident: object = None
    heard = os.fdopen(0, "rb", buffering=0)  # what is unread must lie in the pipe
    while line := heard.readline():
        asked = json.loads(line)
        if asked.get("method") == "tools/call":
            ident = asked["id"]
            say(filled(answers.said, ident))
        elif "id" in asked:
            say([listed(asked["id"])])
            if answers.unread:
                select.select([heard], [], [])
                say(filled(answers.said, asked["id"] + 1))
    say(filled(answers.leaving, ident))


@contextmanager
def http(answers: Answers, kind: str) -> Iterator[str]:
    """Its URL while it runs; its answers to calls are of this kind."""
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            call = asked["method"] == "tools/call"
            said = filled(answers.said, asked["id"]) if call else [listed(asked["id"])]
            if call and "event" in kind:
                said = [f"data: {one}\n\n" for one in said]
            self._answer(answers.status if call else 200, kind if call else "application/json", said)
            for one in filled(answers.leaving, asked["id"]) if call else []:
                self._chunk(f"data: {one}\n\n")
            self._chunk("")

        def _answer(self, status: int, kind: str, parts: list[str]) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self._chunk("".join(parts))

        def _chunk(self, text: str) -> None:
            data = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp"
        finally:
            server.shutdown()
            serving.join()


if __name__ == "__main__":
    main()
