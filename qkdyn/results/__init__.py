"""Results on disk and in words: whole files, datasets, manifests, summaries, tables and comparisons of sweeps."""

from qkdyn.files import prepare_folder, write_atomic, write_bytes, write_text
from qkdyn.results.compare import compare_runs
from qkdyn.results.datasets import load_dataset, save_dataset
from qkdyn.results.frames import check_frame, load_frame
from qkdyn.results.provenance import manifest, write_manifest
from qkdyn.results.summary import summarize, summary_frame, write_summary
from qkdyn.results.tables import sweep_table
from qkdyn.results.vouch import retract, verify, warn_unless_vouched

__all__ = [
    "check_frame",
    "compare_runs",
    "load_dataset",
    "load_frame",
    "manifest",
    "prepare_folder",
    "retract",
    "save_dataset",
    "summarize",
    "summary_frame",
    "sweep_table",
    "verify",
    "warn_unless_vouched",
    "write_atomic",
    "write_bytes",
    "write_manifest",
    "write_summary",
    "write_text",
]
