"""The ledger held against a downstream's own list of effects, both ways: `fencepost audit`.

`compare` judges one intent and the effects that belong to it (pure); `intents` reads the ledger by pages,
`books` the downstream, `spool` keeps both on disk while they are matched, `auditing` does it in order.
"""
