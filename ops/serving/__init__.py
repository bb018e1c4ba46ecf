"""What `tgq serve` is made of: children that are kept running, what the person in front of it sees, and the order of it all."""
