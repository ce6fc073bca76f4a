"""What dist-fuse-collectives joins: chains of collectives, small ones that go together, exchanges of windows."""
