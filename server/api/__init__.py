"""The routes, one folder per API."""
