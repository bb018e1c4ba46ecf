"""What `tgq batch` is made of: a client of the files and batches of a service, and what people see of a batch."""
