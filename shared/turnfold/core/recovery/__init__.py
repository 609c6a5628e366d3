"""Make a request fit without the service: recognize overflow, and trim an agent's own list."""
