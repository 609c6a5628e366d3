"""SQL for compaction: jobs, versions, campaigns and the requests that change a session."""
