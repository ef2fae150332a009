"""What a run says and is asked: every record, the requests, and the one codec for both."""
