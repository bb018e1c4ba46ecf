"""What `text-generation-launcher` is made of: the flags of TGI's launcher, and what becomes of them here."""
