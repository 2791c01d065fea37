"""`placet demo`: a story told to the running service as an agent would tell it, and checked as it is told (SPEC S14.2)."""
