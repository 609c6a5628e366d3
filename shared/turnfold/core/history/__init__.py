"""Say here what lives in this folder."""
