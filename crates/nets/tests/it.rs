//! Nets from outside: real stores, real sockets, real packets.

#[cfg(test)]
mod it {
    mod attach;
    mod aws;
    mod azure;
    mod bed;
    mod behind;
    mod circles;
    mod crash;
    mod escapes;
    mod first_vpn;
    mod gcp;
    mod ibm;
    mod import;
    mod leaving;
    mod life;
    mod local;
    mod operations;
    mod orchestrator;
    mod originals;
    mod pairs;
    mod remote_tags;
    mod repair;
    mod replicas;
    mod several;
    mod sim;
    mod tags;
    mod trust;
}
