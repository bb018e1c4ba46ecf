"""What `tgq bench serve` is made of: load on any compatible server, and what its clients feel."""
