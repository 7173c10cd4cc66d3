"""What a panel is made of: controls, a figure that survives a reload, the newest-only worker, messages, saved files."""
