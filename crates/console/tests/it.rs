//! The console as a browser and a script meet it, on a real listener.

#[path = "it/api.rs"]
mod api;
#[path = "it/page.rs"]
mod page;
#[path = "it/served.rs"]
mod served;
