//! What every back end must do. Each function takes any place; the macro runs it in all three.

#[path = "conformance/leases.rs"]
mod leases;
#[path = "conformance/records.rs"]
mod records;
#[path = "conformance/tables.rs"]
mod tables;
#[path = "conformance/transactions.rs"]
mod transactions;
#[path = "conformance/watches.rs"]
mod watches;

/// Declares a test of each function for each back end.
macro_rules! everywhere {
    ($($name:ident)*) => {
        everywhere!(@kind memory InMemory $($name)*);
        everywhere!(@kind redb InFile $($name)*);
        everywhere!(@kind redis InRedis $($name)*);
    };
    (@kind $kind:ident $place:ident $($name:ident)*) => {
        mod $kind {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let place = <crate::place::$place as crate::place::Place>::new().await;
                    super::$name(&place).await;
                }
            )*
        }
    };
}
pub(crate) use everywhere;
