"""A loader, a storage and a machine into findings: what was measured, why it hurts, what to change."""
