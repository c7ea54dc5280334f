//! Parquet tables for people and their tools (to come).
