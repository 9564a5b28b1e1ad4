"""Prices of training steps.

``playbook_sample.csv``: rows of the Ultra-Scale Playbook's interactive sweep (assets/data/benchmarks, read from
github.com/vinjn/nanotron-ultrascale-playbook at 924e4d0; shapes from huggingface/nanotron, scripts/
scaling_benchmarks.py): the eight runs that a calibration chooses, and the 8B model on 4 nodes.
``korthikanti2022_table5.csv``: arXiv:2205.05198, tables 3 and 5.
"""
