//! Reach seen from outside.
