"""What `tgq chat` is made of: a client, the conversation, what is typed and what is shown."""
