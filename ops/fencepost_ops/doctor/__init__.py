"""What `fencepost doctor` finds: `facts` are gathered by thin readers and judged by pure functions."""
