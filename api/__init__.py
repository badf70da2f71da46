"""What is stored in the cluster, and the pure rules both processes need. No I/O."""
