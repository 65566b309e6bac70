"""A key group moves from slot A to slot B while it is used: direct, CPA and CPAL, with crashes and retries at every step."""
