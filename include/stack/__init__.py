"""The local stack: every server of one installation on loopback, supervised, with generated secrets."""
