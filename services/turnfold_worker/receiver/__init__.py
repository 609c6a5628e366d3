"""The process beside a worker that receives its events, weighs them, and acknowledges what the worker has stored."""

from turnfold_worker.receiver.parent import Receiver

__all__ = ["Receiver"]
