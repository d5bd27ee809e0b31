"""Who else uses the memory of entries."""
