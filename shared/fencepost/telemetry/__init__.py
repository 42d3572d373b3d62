"""What a process tells of itself: ids that belong together, log lines, spans, figures. All of it optional."""
