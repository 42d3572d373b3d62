"""The relay: the only publisher of what the outbox says is due."""
