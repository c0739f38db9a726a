"""`imsvd bench campaign`: bad days on purpose, and a table of what they cost."""
