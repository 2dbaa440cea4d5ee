//! Nets from outside.
