"""Models of the answers to requests, by topic. `reading` validates answers without them.

The services write answers as text, because that is faster. The models describe these texts: OpenAPI
and AsyncAPI are generated from them, and the tests validate every answer that they receive.
"""
