"""Tests of tables run in a folder of their own, so that files have short names."""

from tests.places import in_folder as in_folder
