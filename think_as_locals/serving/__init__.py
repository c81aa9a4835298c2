"""A judge behind HTTP: requests that arrive together are answered by one call of one engine."""
