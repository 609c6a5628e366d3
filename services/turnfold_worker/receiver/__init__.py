"""The process beside a worker that pulls, decodes and acknowledges its events."""

from turnfold_worker.receiver.parent import Receiver, ReceiverProcess

__all__ = ["Receiver", "ReceiverProcess"]
