//! The whole product from outside: the binary, its files and its tree.

mod cli;
mod fuzz;
mod reach;
mod tree;
