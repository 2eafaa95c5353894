"""Versions of jobs: their archives, publishing, shared libraries, and what a new version means for existing state.

May import ``spark`` and what lies below.

Entry points: ``artifacts.publish`` and ``artifacts.load_manifest``, ``libraries``, ``verdicts``, ``template``.
"""
