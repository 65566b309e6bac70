"""Makes what the registry wants on this node and keeps it, reports what there is, and carries out what is granted."""
