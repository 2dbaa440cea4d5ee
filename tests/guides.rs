//! The guides are true: their commands run as they stand there, and say what is written below them.

mod fences;
mod frame;
mod jobs;
mod mesh;
mod migration;
mod nets;
mod operations;
mod pods;
mod reach;
mod start;
