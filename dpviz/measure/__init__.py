"""What happened: bytes on the wire, collectives issued, fingerprints of a rank's state."""
