"""The HTTP interface of the query service. `app.make_http` puts its parts together."""
