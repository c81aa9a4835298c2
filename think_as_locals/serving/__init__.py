"""A judge behind HTTP; one engine call answers all requests that arrive together."""
