"""The ledger: Postgres tables, their guards, and `apply`, the one way to change them."""
