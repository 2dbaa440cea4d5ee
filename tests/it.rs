//! The whole product from outside: the binary, its files and its tree.

#[cfg(test)]
mod asking;
#[cfg(test)]
mod callers;
#[cfg(test)]
mod canaries;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod clocks;
#[cfg(test)]
mod compose;
#[cfg(test)]
mod console;
#[cfg(test)]
mod crossings;
#[cfg(test)]
mod documents;
#[cfg(test)]
mod escapes;
#[cfg(test)]
mod expiry;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod glide;
#[cfg(test)]
mod guides;
#[cfg(test)]
mod image;
#[cfg(test)]
mod jobs;
#[cfg(test)]
mod kas;
#[cfg(test)]
mod kubelet;
#[cfg(test)]
mod loops;
#[cfg(test)]
mod mesh;
#[cfg(test)]
mod packaging;
#[cfg(test)]
mod panels;
#[cfg(test)]
mod partition;
#[cfg(test)]
mod principals;
#[cfg(test)]
mod probes;
#[cfg(test)]
mod reach;
#[cfg(test)]
mod readonly;
#[cfg(test)]
mod record;
#[cfg(test)]
mod reload;
#[cfg(test)]
mod scarcity;
#[cfg(test)]
mod skew;
#[cfg(test)]
mod smuggling;
#[cfg(test)]
mod soak;
#[cfg(test)]
mod supply;
#[cfg(test)]
mod tags;
#[cfg(test)]
mod traces;
#[cfg(test)]
mod tree;
#[cfg(test)]
mod up;
#[cfg(test)]
mod verified;
#[cfg(test)]
mod weather;
