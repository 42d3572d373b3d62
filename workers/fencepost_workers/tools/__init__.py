"""How tools are executed: requests sent by one engine, Python functions run beside it."""
