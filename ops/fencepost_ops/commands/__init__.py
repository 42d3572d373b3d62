"""The commands of `fencepost`, one module per group; `fencepost_ops.cli` puts them together."""
