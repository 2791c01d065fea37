"""The sandbox layer's strategies, one a file."""
