"""What travels: events in, requests and answers, notices out; versioned, and fixed once published."""
