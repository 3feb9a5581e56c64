"""APIs of others, a folder each: any of them can be deleted."""
