"""Tools of the acceptance application that use secrets, and do what gives secrets away.

The service is a test's own: its address and the token for it are in files of the folder, read when used.
"""

import base64
import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fencepost import App, Contract, Dedupes, Effect, FirstFailure, Lookup, Request
from fencepost.secrets import SecretRef
from fencepost.tools import Attempt
from fencepost_workers.tools.secrets import files_and_variables

log = logging.getLogger(__name__)


class Login(BaseModel):
    reference: str
    password: SecretRef
    then: str = "take"


class Receipt(BaseModel):
    id: str


def _form(args: Login) -> Request:
    if args.then == "no request":
        raise RuntimeError(f"no request for {args.password!r} and {args.password}")
    return Request.post(
        "/login",
        json={"reference": args.reference, "password": args.password, "then": args.then},
        query={"token": args.password},
        headers={"X-Password": f"plain {args.password}"},
    )


def _by_key(args: Login, key: str) -> Request:
    return Request.get(f"/by-key/{key}", headers={"X-Password": f"plain {args.password}"})


def _tell(args: Login, attempt: Attempt) -> dict[str, Any]:
    """Does with a secret what should not be done with one."""
    password = attempt.secret(args.password).reveal()
    log.warning("logging in with %s for %r", password, {"attempt": attempt})
    if args.then == "raise":
        try:
            raise RuntimeError("x" * 495 + password)  # cut in the middle of it
        except RuntimeError:
            log.exception("logging in failed")
            raise
    basic = base64.b64encode(f"anna:{password}".encode()).decode()
    return {"id": password, "said": f"logged in with {password}", "basic": basic, "attempt": repr(attempt)}


def add(app: App, folder: Path) -> None:
    """Register them, and who knows their secrets."""
    os.environ["ECHO_URL_FILE"] = str(folder / "echo-url")
    os.environ["ECHO_TOKEN_FILE"] = str(folder / "echo-token")
    app.secrets(files_and_variables(str(folder / "secrets")))
    second = timedelta(seconds=1)
    contract = Contract(
        repeat=Dedupes(window=timedelta(hours=1), first_failure=FirstFailure.UNKNOWN),
        lookup=Lookup(by="key", strong=True),
        settle=second,
        not_applied=frozenset({422}),
    )
    echo = app.dependency(
        "echo",
        "env:ECHO_URL",
        headers={"Authorization": "env:ECHO_TOKEN"},
        attempts=2,
        per_attempt=4 * second,
        grace=second,
        reserve=second,
        backoff=timedelta(milliseconds=50),
        reconcile_for=30 * second,
    )
    login = echo.http(
        "echo.login",
        effect=Effect.IRREVERSIBLE,
        returns=Receipt,
        intent=lambda a: ("login", a.reference),
        contract=contract,
        secrets=("mailbox/*",),
        required=False,
    )(_form)
    login.lookup(_by_key)
    echo.python(
        "echo.tell",
        effect=Effect.IRREVERSIBLE,
        intent=lambda a: ("tell", a.reference),
        secrets=("mailbox/*",),
        required=False,
    )(_tell)
