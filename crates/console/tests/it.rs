//! The console as a browser and a script meet it, on a real listener.

#[cfg(test)]
mod it {
    mod api;
    mod page;
    mod served;
}
