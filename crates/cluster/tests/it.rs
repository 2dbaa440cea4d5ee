//! Clients, watches, writes and leadership against a real control plane.

#[cfg(test)]
mod it {
    mod clients;
    mod leadership;
    mod watching;
}
