"""A package, so that its fixtures end with it: while Playwright runs, no other event loop can."""
