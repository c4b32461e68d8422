"""Results on disk and in words: whole files, datasets, manifests, summaries, tables and comparisons of sweeps."""

from qkdyn.results.compare import compare_runs
from qkdyn.results.datasets import load_dataset, save_dataset
from qkdyn.results.files import prepare_folder, write_atomic, write_bytes, write_text
from qkdyn.results.provenance import manifest, write_manifest
from qkdyn.results.summary import summarize, summary_frame, write_summary
from qkdyn.results.tables import sweep_table

__all__ = [
    "compare_runs",
    "load_dataset",
    "manifest",
    "prepare_folder",
    "save_dataset",
    "summarize",
    "summary_frame",
    "sweep_table",
    "write_atomic",
    "write_bytes",
    "write_manifest",
    "write_summary",
    "write_text",
]
