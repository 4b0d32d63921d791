"""Calibration: data sources, statistics that merge exactly, and the rules that read ranges off."""

from qir.calibration.collect import Calibratable, collect
from qir.calibration.data import DataSource, open_data
from qir.calibration.feeds import Feeds, open_feeds
from qir.calibration.labels import read_labels
from qir.calibration.observers import (
    Observer,
    Parameter,
    RangeRule,
    Readers,
    Seen,
    observer,
    parse_rule,
)
from qir.calibration.pieces import InputSpec
from qir.calibration.preprocess import Preprocess, read_preprocess
from qir.calibration.record import BatchId, Key, Log
from qir.calibration.rules import Range
from qir.calibration.statistics import Batch, Statistics
from qir.calibration.summary import Extremes, Summary

__all__ = [
    "Batch",
    "BatchId",
    "Calibratable",
    "DataSource",
    "Extremes",
    "Feeds",
    "InputSpec",
    "Key",
    "Log",
    "Observer",
    "Parameter",
    "Preprocess",
    "Range",
    "RangeRule",
    "Readers",
    "Seen",
    "Statistics",
    "Summary",
    "collect",
    "observer",
    "open_data",
    "open_feeds",
    "parse_rule",
    "read_labels",
    "read_preprocess",
]
