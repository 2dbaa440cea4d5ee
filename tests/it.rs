//! The whole product from outside: the binary, its files and its tree.

mod cli;
mod faults;
mod console;
mod fuzz;
mod jobs;
mod reach;
mod tree;
