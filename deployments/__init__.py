"""What puts the flows on a server, and the configurations that come with the project."""
