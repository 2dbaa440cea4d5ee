//! Clients, watches, writes and leadership against a real control plane.

mod it {
    mod clients;
    mod leadership;
    mod watching;
}
