//! Real programs, run in hosts.
