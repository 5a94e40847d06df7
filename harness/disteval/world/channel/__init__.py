"""Messages between the leader of a world and its ranks, on connections of their own."""
