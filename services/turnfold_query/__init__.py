"""The query service: what should my model see next?"""
