"""The commands of `tgq`, one file each; nothing here is imported before its command runs."""
